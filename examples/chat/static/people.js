// Who is here and who is typing: ephemeral frames, which nobody stores.
import { makeFace, myName, nameField } from './names.js';
import { byId, element, posting, room } from './page.js';

const hereInterval = 20_000;
const hereTimeout = 50_000;
const typingTimeout = 4_000;

// When a name was heard of last.
const people = new Map();
const typing = new Map();

export function takeActivity({ kind, name }) {
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

/** Somebody has written what they were typing. */
export function stopTyping(name) {
  typing.delete(name);
  showTyping();
}

function showPeople() {
  const names = [...people.keys()].sort((a, b) => a.localeCompare(b));
  byId('people').replaceChildren(...[myName(), ...names].map((name, i) =>
    element('li', {}, makeFace(name), element('bdi', { textContent: name }), i === 0 ? '(you)' : '')));
}
showPeople();

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

/** Tells the others. What does not get through is not worth a word. */
export function tell(kind) {
  return fetch(`/rooms/${room}/activity`, { ...posting({ kind, name: myName() }), keepalive: true }).catch(() => {});
}

setInterval(() => document.hidden || tell('here'), hereInterval);
addEventListener('pagehide', () => tell('left'));
addEventListener('pageshow', (event) => event.persisted && tell('arrived'));
nameField.addEventListener('change', () => {
  showPeople();
  tell('arrived');
});

let typedAt = 0;
byId('text').addEventListener('input', ({ target }) => {
  if (target.value.trim() && Date.now() - typedAt > typingTimeout / 2) {
    typedAt = Date.now();
    tell('typing');
  }
});
byId('composer').addEventListener('sent', () => (typedAt = 0));
