// The chat's page. The server has rendered the room's newest messages and the position
// where they end; from there on the page follows the stream.
import { Position, subscribe } from '/fanfare.js';

const channel = 'chat/messages';
const room = document.body.dataset.room;
const demo = 'demo' in document.body.dataset;
const byId = (id) => document.getElementById(id);
const messages = byId('messages');
const scroll = byId('scroll');
const nameField = byId('name');
const textField = byId('text');

// What people write becomes text, never markup: only textContent and attributes are set.
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

/* Names. */

const adjectives = ['Quick', 'Calm', 'Bright', 'Brave', 'Merry', 'Quiet', 'Clever', 'Gentle'];
const animals = ['Otter', 'Heron', 'Badger', 'Wren', 'Lynx', 'Hare', 'Finch', 'Marten'];
const anyOf = (list) => list[Math.floor(Math.random() * list.length)];
nameField.value = localStorage.getItem('chat name') || `${anyOf(adjectives)} ${anyOf(animals)}`;
const myName = () => nameField.value.trim() || 'Somebody';

nameField.addEventListener('change', () => {
  nameField.value = myName();
  localStorage.setItem('chat name', nameField.value);
  for (const item of messages.querySelectorAll('.message')) {
    item.classList.toggle('mine', item.dataset.author === myName());
  }
  tell('arrived');
});

// A name's colour is the same on every page.
function hueOf(name) {
  let hash = 7;
  for (const unit of name) {
    hash = (hash * 31 + unit.codePointAt(0)) % 360_001;
  }
  return hash % 360;
}

function paint(face, name) {
  face.textContent = [...name][0].toUpperCase();
  face.style.setProperty('--hue', hueOf(name));
  return face;
}

const makeFace = (name) => {
  const face = element('span', { className: 'face' });
  face.setAttribute('aria-hidden', 'true');
  return paint(face, name);
};

/* Messages. */

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
  item.classList.toggle('mine', item.dataset.author === myName());
}

const known = new Set();
for (const item of messages.querySelectorAll('.message')) {
  known.add(item.dataset.key);
  paint(item.querySelector('.face'), item.dataset.author);
  finish(item);
}

// Who reads the newest messages sees those that come, also when the window or the
// field becomes larger; who reads old ones stays there.
let atEnd = true;
function toEnd() {
  scroll.scrollTop = scroll.scrollHeight;
  atEnd = true;
}
scroll.addEventListener('scroll', () => {
  atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;
});
new ResizeObserver(() => atEnd && toEnd()).observe(scroll);

function append(...items) {
  byId('empty').hidden = true;
  messages.append(...items);
  if (atEnd) {
    toEnd();
  }
}

const note = (text) => append(element('li', { className: 'note', textContent: text }));

function add(message) {
  if (known.has(message.key)) {
    return; // the history that was read after a gap may have it
  }
  known.add(message.key);
  const item = makeMessage(message);
  item.classList.add('new');
  append(item);
  typing.delete(message.author);
  showTyping();
}

// refill shows the history anew, after messages were missed. What comes meanwhile waits.
let waiting = null;
async function refill() {
  if (waiting) {
    return;
  }
  waiting = [];
  try {
    const history = await ask(`/rooms/${room}/history`);
    known.clear();
    messages.replaceChildren(...history.messages.map((message) => {
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

/* Rooms and what is unread in them. */

const links = new Map([...document.querySelectorAll('#rooms a')].map((link) => [link.dataset.room, link]));
const newest = new Map([...links].map(([name, link]) => [name, Number(link.dataset.newest)]));
const title = document.title;

const seenIn = (name) => Number(localStorage.getItem(`chat seen ${name}`) ?? newest.get(name));
const see = (name, sequence) => localStorage.setItem(`chat seen ${name}`, sequence);

// A stream's sequences have no holes, so what is unread is a subtraction.
function showUnread() {
  if (!document.hidden) {
    see(room, newest.get(room));
  }
  for (const [name, link] of links) {
    const count = Math.max(0, newest.get(name) - seenIn(name));
    const badge = link.querySelector('.unread');
    badge.hidden = count === 0 || name === room;
    badge.textContent = count > 99 ? '99+' : count;
    link.setAttribute('aria-label', link.querySelector('.title').textContent + (badge.hidden ? '' : `, ${count} unread`));
    if (name === room) {
      document.title = count ? `(${count}) ${title}` : title;
    }
  }
}

// What has never been seen counts from the first visit on.
for (const [name, sequence] of newest) {
  if (localStorage.getItem(`chat seen ${name}`) === null || seenIn(name) > sequence) {
    see(name, sequence);
  }
}
addEventListener('storage', showUnread);
document.addEventListener('visibilitychange', showUnread);

/* Who is here and who is typing: ephemeral frames, which nobody stores. */

const hereInterval = 20_000;
const hereTimeout = 50_000;
const typingTimeout = 4_000;
const people = new Map();
const typing = new Map();

function takeActivity({ kind, name }) {
  if (name === myName()) {
    return;
  }
  const isNew = !people.has(name);
  if (kind === 'left') {
    people.delete(name);
    typing.delete(name);
  } else {
    people.set(name, Date.now());
  }
  if (kind === 'typing') {
    typing.set(name, Date.now());
  }
  // Who arrives learns of the others, who do not all answer in the same moment.
  if (kind === 'arrived' && isNew) {
    setTimeout(() => tell('here'), Math.random() * 800);
  }
  showPeople();
  showTyping();
}

function showPeople() {
  const names = [...people.keys()].sort((a, b) => a.localeCompare(b));
  byId('people').replaceChildren(...[myName(), ...names].map((name, i) =>
    element('li', {}, makeFace(name), element('bdi', { textContent: name }), i === 0 ? '(you)' : '')));
}

function showTyping() {
  const names = [...typing.keys()];
  const line = byId('typing');
  line.replaceChildren();
  names.slice(0, 3).forEach((name, i) => line.append(i ? ', ' : '', element('bdi', { textContent: name })));
  if (names.length) {
    line.append(names.length > 3 ? ` and ${names.length - 3} more are typing…` : names.length > 1 ? ' are typing…' : ' is typing…');
  }
}

setInterval(() => {
  const forget = (map, timeout) => {
    for (const [name, time] of map) {
      if (Date.now() - time > timeout) {
        map.delete(name);
      }
    }
  };
  const [before, typed] = [people.size, typing.size];
  forget(people, hereTimeout);
  forget(typing, typingTimeout);
  if (before !== people.size) {
    showPeople();
  }
  if (typed !== typing.size) {
    showTyping();
  }
}, 1_000);

// An activity that does not get through is not worth a word.
function tell(kind) {
  return fetch(`/rooms/${room}/activity`, {
    method: 'POST', keepalive: true,
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ kind, name: myName() }),
  }).catch(() => {});
}

setInterval(() => document.hidden || tell('here'), hereInterval);
addEventListener('pagehide', () => tell('left'));
addEventListener('pageshow', (event) => event.persisted && tell('arrived'));

let typedAt = 0;
textField.addEventListener('input', () => {
  if (textField.value.trim() && Date.now() - typedAt > typingTimeout / 2) {
    typedAt = Date.now();
    tell('typing');
  }
});

/* Writing. */

async function ask(url, options) {
  const response = await fetch(url, options);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw Object.assign(new Error(answer.error || `the server answers ${response.status}`), { final: response.status < 500 });
  }
  return answer;
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// post is tried again where it may pass. The key stays the same, so that what was stored
// although nobody could say so is not stored twice.
async function post(body) {
  const request = JSON.stringify({ key: crypto.randomUUID(), author: myName(), body });
  for (let attempt = 1; ; attempt++) {
    try {
      return await ask(`/rooms/${room}/messages`, {
        method: 'POST', headers: { 'Content-Type': 'application/json' }, body: request,
      });
    } catch (error) {
      if (error.final || attempt === 5) {
        throw error;
      }
      await pause(200 * 2 ** attempt * (0.5 + Math.random()));
    }
  }
}

byId('composer').addEventListener('submit', async (event) => {
  event.preventDefault();
  const body = textField.value.trim();
  if (!body || byId('send').disabled) {
    return;
  }
  localStorage.setItem('chat name', myName());
  byId('send').disabled = true;
  byId('problem').textContent = '';
  try {
    await post(body);
    textField.value = '';
    typedAt = 0;
    toEnd();
  } catch (error) {
    byId('problem').textContent = `This was not sent: ${error.message}`;
  }
  byId('send').disabled = false;
  textField.focus();
});

textField.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId('composer').requestSubmit();
  }
});

/* Where the page is connected. */

// nginx says by a cookie which replica a window was given, and tells windows apart by
// the path that they subscribe at.
const windowId = crypto.randomUUID().slice(0, 8);
let replica;
// When the page lost its connection, and to which replica, until it has caught up again.
let away;

function replicaNow() {
  const cookie = `chat_replica_${windowId}`;
  const value = document.cookie.split('; ').find((pair) => pair.startsWith(`${cookie}=`))?.slice(cookie.length + 1);
  if (value) {
    document.cookie = `${cookie}=; Path=/; Max-Age=0; SameSite=Strict`;
  }
  return value ?? replica;
}

function setStatus(state, text) {
  byId('status').dataset.state = state;
  byId('status-text').textContent = text;
}

// That a connection is open says little: while no replica runs, nginx opens each, says
// when to come again, and ends it. Once everything stored before has come, it is true.
function caughtUp({ stream }) {
  if (stream.scope !== room) {
    return;
  }
  replica = replicaNow();
  setStatus('live', replica ? `live from replica ${replica}` : 'live');
  if (away) {
    const seconds = ((performance.now() - away.since) / 1000).toFixed(1);
    const what = replica && away.from !== replica
      ? `Replica ${away.from} is gone. This page goes on at replica ${replica}`
      : 'The connection was lost. This page goes on';
    note(`${what} after ${seconds} s, and no message is missing.`);
    away = undefined;
  }
  showReplicas();
  // Whoever lost the connection may have missed who came and went.
  tell('arrived');
}

function showStatus({ state, error }) {
  switch (state) {
    case 'open':
      break; // caughtUp
    case 'paused':
      away = undefined;
      setStatus('waiting', 'paused');
      break;
    case 'ended':
      setStatus('ended', `ended: ${error?.message ?? 'reload the page'}`);
      break;
    default:
      if (state === 'waiting' && byId('status').dataset.state === 'live') {
        away ??= { since: performance.now(), from: replica };
      }
      setStatus('waiting', away && replica ? `replica ${replica} is gone, trying another` : 'connecting');
  }
}

/* The replicas, where chat demo lets them be killed. */

let replicas = [];

async function readReplicas() {
  replicas = await ask('/demo/replicas').catch(() => replicas);
  showReplicas();
}

function showReplicas() {
  const list = byId('replicas');
  if (!list) {
    return;
  }
  for (const { name, pid } of replicas) {
    let item = list.querySelector(`[data-name="${name}"]`);
    if (!item) {
      const lamp = element('span', { className: 'lamp' });
      lamp.setAttribute('aria-hidden', 'true');
      const kill = element('button', { type: 'button', textContent: 'Kill' });
      kill.setAttribute('aria-label', `Kill replica ${name}`);
      kill.addEventListener('click', async () => {
        await ask(`/demo/replicas/${name}/kill`, { method: 'POST' }).catch(() => {});
        await readReplicas();
      });
      item = element('li', { className: 'replica' }, lamp, element('span', { className: 'what' }), kill);
      item.dataset.name = name;
      list.append(item);
    }
    const here = name === replica;
    item.toggleAttribute('data-up', pid !== 0);
    item.toggleAttribute('data-here', here);
    const more = !pid ? ' was killed' : here ? ' serves this page' : '';
    item.querySelector('.what').replaceChildren(name, element('span', { className: 'more', textContent: more }));
    item.querySelector('button').disabled = !pid;
  }
}

/* The stream: this room's, and those of the others for what is unread, over one connection. */

function take(frame) {
  const name = frame.stream.scope;
  if (frame.ephemeral) {
    if (name === room) {
      takeActivity(frame.json());
    }
    return;
  }
  const sequence = Number(Position.parse(frame.position).sequence);
  newest.set(name, sequence);
  if (name === room) {
    const message = { ...frame.json(), sequence };
    if (waiting) {
      waiting.push(message);
    } else {
      add(message);
    }
  }
  showUnread();
}

function takeGap({ stream, reason }) {
  // Who is typing is told again; of messages nothing is missing.
  if (reason !== 'EPHEMERAL_MAYBE_MISSED' && stream.scope === room) {
    away = undefined; // what it would tell is not so
    refill();
  }
}

// The positions of the other rooms are only counted from; this room's is that of the
// last message that the page was made with. 0-0 is before the first of a room.
const names = [...links.keys()];
const after = names.map((name) => (name === room ? document.body.dataset.position : links.get(name).dataset.position) || '0-0');

subscribe({ streams: names.map((scope) => ({ channel, scope })) }, {
  server: demo ? `${location.origin}/window/${windowId}` : undefined,
  after: after.join(','),
  onframe: take,
  ongap: takeGap,
  oncaughtup: caughtUp,
  onstatus: showStatus,
  // A page that nobody looks at for so long catches up when it is shown.
  pauseWhenHidden: 5 * 60_000,
});

toEnd();
showUnread();
showPeople();
links.get(room).scrollIntoView({ block: 'nearest', inline: 'center' });
if (matchMedia('(pointer: fine)').matches) {
  textField.focus();
}
if (demo) {
  readReplicas();
  setInterval(() => document.hidden || readReplicas(), 2_000);
}
