// The list of messages: those that the page was made with, and those that come.
import { makeFace, myName, nameField, paint } from './names.js';
import { ask, byId, element, room } from './page.js';

const list = byId('messages');
const scroll = byId('scroll');

const timeFormat = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' });
const dayFormat = new Intl.DateTimeFormat(undefined, { weekday: 'short', hour: '2-digit', minute: '2-digit' });

function showTime(time) {
  const sent = new Date(time.dateTime);
  const today = sent.toDateString() === new Date().toDateString();
  time.textContent = (today ? timeFormat : dayFormat).format(sent);
  time.title = sent.toLocaleString();
}

function makeMessage({ key, author, body, sent, server, sequence }) {
  const item = element('li', { className: 'message' },
    makeFace(author),
    element('p', { className: 'meta' },
      element('bdi', { className: 'author', textContent: author }),
      element('time', { dateTime: sent }),
      element('span', { className: 'origin' }, `#${sequence}`, element('span', { className: 'by', textContent: ` by ${server}` }))),
    element('p', { className: 'body', dir: 'auto', textContent: body }));
  item.dataset.key = key;
  item.dataset.author = author;
  item.dataset.sequence = sequence;
  finish(item);
  return item;
}

// finish does what only the browser knows: its time zone and who is "you".
function finish(item) {
  showTime(item.querySelector('time'));
  markMine(item);
}

const markMine = (item) => item.classList.toggle('mine', item.dataset.author === myName());

const known = new Set();
for (const item of list.querySelectorAll('.message')) {
  known.add(item.dataset.key);
  paint(item.querySelector('.face'), item.dataset.author);
  finish(item);
}

nameField.addEventListener('change', () => list.querySelectorAll('.message').forEach(markMine));

// Who reads the newest messages sees those that come, also when the window or the
// field becomes larger; who reads old ones stays there.
let atEnd = true;
export function toEnd() {
  scroll.scrollTop = scroll.scrollHeight;
  atEnd = true;
}
scroll.addEventListener('scroll', () => {
  atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
});
new ResizeObserver(() => atEnd && toEnd()).observe(scroll);

function append(item) {
  byId('empty').hidden = true;
  list.append(item);
  if (atEnd) {
    toEnd();
  }
}

/** Says something between the messages. */
export const note = (text) => append(element('li', { className: 'note', textContent: text }));

// Messages that come while the history is read, or null; and whether more were missed since
// it was asked for.
let waiting = null;
let again = false;

export function add(message) {
  if (waiting) {
    waiting.push(message);
    return;
  }
  if (known.has(message.key)) {
    return; // the history that was read after a gap may have it
  }
  known.add(message.key);
  const item = makeMessage(message);
  item.classList.add('new');
  append(item);
}

/** Shows the history anew, after messages were missed. */
export async function refill() {
  again = true;
  if (waiting) {
    return;
  }
  waiting = [];
  try {
    let history;
    while (again) {
      again = false;
      history = await ask(`/rooms/${room}/history`, { signal: AbortSignal.timeout(15_000) });
    }
    known.clear();
    list.replaceChildren(...history.messages.map((message) => {
      known.add(message.key);
      return makeMessage(message);
    }));
    note('Some messages were missed here, and the history was read again.');
    toEnd();
  } catch {
    note('Some messages are missing here. Reload the page to see them.');
  }
  const [late] = [waiting, waiting = null];
  late.forEach(add);
}
