// Runs before anything is painted, so that no page flashes up in the other colours. The
// key is theme.ts's, which goes on from here.
let chosen: string | null = null;
try {
  chosen = localStorage.getItem('fanfare.theme');
} catch {
  // Nothing is stored here.
}
if (chosen !== 'light' && chosen !== 'dark') {
  chosen = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
}
document.documentElement.dataset['theme'] = chosen;
