// Calls of the server that the page came from.
import { batch, signal } from '@preact/signals';

/** Where the server's other paths are: the console is one directory below. */
export const base = new URL('..', document.baseURI);

export function at(path: string, query: Record<string, string | number | undefined> = {}): string {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== '') {
      url.searchParams.set(name, String(value));
    }
  }
  return url.href;
}

const tokenKey = 'fanfare.token';

function storedToken(): string {
  try {
    return sessionStorage.getItem(tokenKey) ?? '';
  } catch {
    return '';
  }
}

/** The reader's token, kept for this tab only; empty if there is none. */
export const token = signal(storedToken());

/** Why a token is needed; empty while none is. What needs one waits meanwhile. */
export const tokenWanted = signal('');
/** The reader is asked for one. */
export const askingForToken = signal(false);

export function setToken(value: string) {
  try {
    if (value === '') {
      sessionStorage.removeItem(tokenKey);
    } else {
      sessionStorage.setItem(tokenKey, value);
    }
  } catch {
    // It holds until the page is closed.
  }
  batch(() => {
    tokenWanted.value = '';
    askingForToken.value = false;
    token.value = value;
  });
}

/** What the server, or the way to it, says went wrong. */
export class ApiError extends Error {
  constructor(
    message: string,
    /** The status of HTTP; 0 if there was no answer. */
    readonly status: number,
    /** A name of ErrorReason without its prefix; empty if there is none. */
    readonly reason = '',
    /** The field of the request that is outside its limit, as the protocol names it. */
    readonly field = '',
  ) {
    super(message);
  }
}

/** How the server tells of an error. */
interface Problem {
  message?: string;
  reason?: string;
  field?: string;
}

async function errorOf(response: Response): Promise<ApiError> {
  let problem: Problem = {};
  try {
    problem = (await response.json()) as Problem;
  } catch {
    // A proxy's page rather than the server's answer.
  }
  return new ApiError(
    problem.message || `the server answered ${response.status}`,
    response.status,
    problem.reason,
    problem.field,
  );
}

async function request(path: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  const used = token.value;
  if (used !== '') {
    headers.set('authorization', `Bearer ${used}`);
  }
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers, cache: 'no-store', credentials: 'same-origin' });
  } catch (err) {
    if (init.signal?.aborted) {
      throw err;
    }
    throw new ApiError('the server cannot be reached', 0);
  }
  if (response.status === 401 && used === token.value) {
    wantToken();
  }
  return response;
}

/** Asks the reader for a token, because the server wants one, or another. */
export function wantToken() {
  if (tokenWanted.value !== '') {
    return;
  }
  batch(() => {
    tokenWanted.value =
      token.value === '' ? 'This server asks for a token.' : 'The server does not take this token (any more).';
    askingForToken.value = true;
  });
}

export async function get<T>(
  path: string,
  query: Record<string, string | number | undefined> = {},
  signal?: AbortSignal,
): Promise<T> {
  const response = await request(at(path, query), { signal: signal ?? null });
  if (!response.ok) {
    throw await errorOf(response);
  }
  return (await response.json()) as T;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  const response = await request(at(path), {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  if (!response.ok) {
    throw await errorOf(response);
  }
  return (await response.json()) as T;
}

/** Reads /healthz, which answers 503 with the same document when it is not ready. */
export async function getHealth<T>(signal: AbortSignal): Promise<T> {
  const response = await request(at('healthz'), { signal });
  if (!response.ok && response.status !== 503) {
    throw await errorOf(response);
  }
  try {
    return (await response.json()) as T;
  } catch (err) {
    if (signal.aborted) {
      throw err;
    }
    throw await errorOf(response);
  }
}

export function messageOf(err: unknown): string {
  if (err instanceof ApiError && err.status === 403) {
    return `Your token does not allow this: ${err.message}`;
  }
  return err instanceof Error ? err.message : String(err);
}
