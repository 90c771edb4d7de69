// The colours follow the system unless the reader has chosen.
import { effect, signal } from '@preact/signals';

export type Theme = 'system' | 'light' | 'dark';

const key = 'fanfare.theme';

/** What is stored; a browser that keeps nothing has the system's. */
function stored(): Theme {
  try {
    const value = localStorage.getItem(key);
    return value === 'light' || value === 'dark' ? value : 'system';
  } catch {
    return 'system';
  }
}

export const theme = signal<Theme>(stored());

const system = matchMedia('(prefers-color-scheme: dark)');
const systemIsDark = signal(system.matches);
system.addEventListener('change', () => (systemIsDark.value = system.matches));

/** Which of the two is shown. */
export const shownTheme = signal<'light' | 'dark'>('light');

// theme-first.ts has done the same before the page was painted.
effect(() => {
  const shown = theme.value === 'system' ? (systemIsDark.value ? 'dark' : 'light') : theme.value;
  document.documentElement.dataset['theme'] = shown;
  shownTheme.value = shown;
});

export function setTheme(value: Theme) {
  theme.value = value;
  try {
    localStorage.setItem(key, value);
  } catch {
    // It holds until the page is closed.
  }
}
