// Runs before anything is painted, so that a chosen theme does not flash up in the
// other's colours. The key is theme.ts's.
try {
  const value = localStorage.getItem('fanfare.theme');
  if (value === 'light' || value === 'dark') {
    document.documentElement.dataset['theme'] = value;
  }
} catch {
  // Nothing is stored here.
}
