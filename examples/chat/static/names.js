// The name of whoever sits here, and the faces of all.
import { byId, element } from './page.js';

const adjectives = ['Quick', 'Calm', 'Bright', 'Brave', 'Merry', 'Quiet', 'Clever', 'Gentle'];
const animals = ['Otter', 'Heron', 'Badger', 'Wren', 'Lynx', 'Hare', 'Finch', 'Marten'];
const anyOf = (list) => list[Math.floor(Math.random() * list.length)];

/** Where the name is typed. */
export const nameField = byId('name');
nameField.value = localStorage.getItem('chat name') || `${anyOf(adjectives)} ${anyOf(animals)}`;

export const myName = () => nameField.value.trim() || 'Somebody';

export const keepName = () => localStorage.setItem('chat name', myName());

nameField.addEventListener('change', () => {
  nameField.value = myName();
  keepName();
});

// A name's colour is the same on every page.
function hueOf(name) {
  let hash = 7;
  for (const unit of name) {
    hash = (hash * 31 + unit.codePointAt(0)) % 360_001;
  }
  return hash % 360;
}

export function paint(face, name) {
  face.textContent = [...name][0].toUpperCase();
  face.style.setProperty('--hue', hueOf(name));
  return face;
}

export function makeFace(name) {
  const face = element('span', { className: 'face' });
  face.setAttribute('aria-hidden', 'true');
  return paint(face, name);
}
