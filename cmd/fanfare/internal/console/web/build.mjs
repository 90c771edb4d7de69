// Builds ../dist from src/ and what stands beside it. With --check it writes nothing
// and fails if ../dist is not what it would write.
import { build } from 'esbuild';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';

const web = new URL('./', import.meta.url);
const dist = new URL('../dist/', import.meta.url);

const built = await build({
  absWorkingDir: web.pathname,
  entryPoints: { console: 'src/main.tsx', theme: 'src/theme-first.ts', 'console-style': 'src/style.css' },
  outdir: 'out',
  bundle: true,
  write: false,
  minify: true,
  format: 'esm',
  target: 'es2022',
  charset: 'utf8',
  legalComments: 'none',
  logLevel: 'warning',
});

const files = new Map(built.outputFiles.map((f) => [f.path.split(/[\\/]/).pop(), Buffer.from(f.contents)]));
for (const name of ['index.html', 'icon.svg']) {
  files.set(name, await readFile(new URL(`src/${name}`, web)));
}
files.set('licenses.txt', await licenses(['preact', '@preact/signals', '@preact/signals-core', 'uplot']));

if (process.argv.includes('--check')) {
  await check();
} else {
  await rm(dist, { recursive: true, force: true });
  await mkdir(dist);
  for (const [name, content] of files) {
    await writeFile(new URL(name, dist), content);
  }
}

async function check() {
  const there = new Set(await readdir(dist));
  const differing = [];
  for (const [name, content] of files) {
    if (!there.delete(name) || !content.equals(await readFile(new URL(name, dist)))) {
      differing.push(name);
    }
  }
  differing.push(...there);
  if (differing.length > 0) {
    console.error(
      `cmd/fanfare/internal/console/dist is not what web/ builds: ${differing.join(', ')}; run make console`,
    );
    process.exit(1);
  }
}

// The licenses of what is bundled ask to be passed on with it.
async function licenses(names) {
  const texts = await Promise.all(
    names.map(async (name) => {
      const { version } = JSON.parse(await readFile(new URL(`node_modules/${name}/package.json`, web)));
      const text = await readFile(new URL(`node_modules/${name}/LICENSE`, web), 'utf8');
      return `${name} ${version}\n\n${text.trim()}\n`;
    }),
  );
  return Buffer.from(texts.join('\n----\n\n'));
}
