// The colours follow the system unless the reader has chosen.
import { signal } from '@preact/signals';

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

export function setTheme(value: Theme) {
  theme.value = value;
  if (value === 'system') {
    delete document.documentElement.dataset['theme'];
  } else {
    document.documentElement.dataset['theme'] = value;
  }
  try {
    localStorage.setItem(key, value);
  } catch {
    // It holds until the page is closed.
  }
}

/** Counts changes of what the colours are, for what is drawn rather than styled. */
export const repaint = signal(0);

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => repaint.value++);
theme.subscribe(() => queueMicrotask(() => repaint.value++));
