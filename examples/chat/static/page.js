// What all parts of the page use.

/** The room that this page shows. */
export const { room } = document.body.dataset;

/** Whether chat demo runs it all, and its replicas can be killed from the page. */
export const demo = 'demo' in document.body.dataset;

export const byId = (id) => document.getElementById(id);

/** Makes an element. What people write becomes text, never markup: only properties are set. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

/** Asks the chat's server; what it throws is `final` if asking again cannot help. */
export async function ask(url, options) {
  const response = await fetch(url, options);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw Object.assign(new Error(answer.error || `the server answers ${response.status}`), { final: response.status < 500 });
  }
  return answer;
}

/** The options of a request that takes JSON. */
export const posting = (value) => ({
  method: 'POST',
  headers: { 'Content-Type': 'application/json' },
  body: JSON.stringify(value),
});
