// Builds dist/ (ES modules and CommonJS) and, for tests and the conformance
// agent, build/. The protocol's generated code is copied in from gen/ts, where
// that of every language is, and the license, since a package cannot reach
// outside of itself.
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

process.chdir(fileURLToPath(new URL('.', import.meta.url)));
const tsc = createRequire(import.meta.url).resolve('typescript/bin/tsc');

for (const built of ['dist', 'build/js', 'src/gen']) {
  rmSync(built, { recursive: true, force: true });
}
cpSync('../../gen/ts', 'src/gen', { recursive: true });
cpSync('../../LICENSE', 'LICENSE');
mkdirSync('dist/cjs', { recursive: true });

// What CommonJS gets is compiled from the same sources. tsc takes the kind of
// module from the nearest package.json, which calls the sources ES modules.
compile('--project', 'tsconfig.json');
compile('--project', 'tsconfig.json', '--outDir', 'dist/cjs', '--module', 'commonjs', '--moduleResolution', 'node10', '--verbatimModuleSyntax', 'false');
writeFileSync('dist/cjs/package.json', '{ "type": "commonjs" }\n');
compile('--project', 'tsconfig.test.json');

function compile(...args) {
  try {
    execFileSync(process.execPath, [tsc, ...args], { stdio: 'inherit' });
  } catch {
    process.exit(1); // tsc has said what is wrong
  }
}
