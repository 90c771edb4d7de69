// The rooms, and what is unread in them. A stream's sequences have no holes, so that is a
// subtraction: the newest one less the last one that was seen.
import { room } from './page.js';

/** The links to all rooms, by name. */
export const rooms = new Map([...document.querySelectorAll('#rooms a')].map((link) => [link.dataset.room, link]));

const newest = new Map([...rooms].map(([name, link]) => [name, Number(link.dataset.newest)]));
const title = document.title;

const seenIn = (name) => Number(localStorage.getItem(`chat seen ${name}`) ?? newest.get(name));
const see = (name, sequence) => localStorage.setItem(`chat seen ${name}`, sequence);

/** A message has come in a room. */
export function count(name, sequence) {
  newest.set(name, sequence);
  showUnread();
}

function showUnread() {
  if (!document.hidden) {
    see(room, newest.get(room));
  }
  for (const [name, link] of rooms) {
    const unread = Math.max(0, newest.get(name) - seenIn(name));
    const badge = link.querySelector('.unread');
    badge.hidden = unread === 0 || name === room;
    badge.textContent = unread > 99 ? '99+' : unread;
    link.setAttribute('aria-label', link.querySelector('.title').textContent + (badge.hidden ? '' : `, ${unread} unread`));
    if (name === room) {
      document.title = unread ? `(${unread}) ${title}` : title;
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
showUnread();
rooms.get(room).scrollIntoView({ block: 'nearest', inline: 'center' });
