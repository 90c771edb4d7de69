// The replicas, which can be killed where chat demo runs them.
import { ask, byId, demo, element } from './page.js';

let replicas = [];
let here;

/** Marks the replica that serves this page. */
export function showHere(replica) {
  here = replica;
  showReplicas();
}

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
    const item = list.querySelector(`[data-name="${name}"]`) ?? list.appendChild(makeReplica(name));
    item.toggleAttribute('data-up', pid !== 0);
    item.toggleAttribute('data-here', name === here);
    const more = !pid ? ' was killed' : name === here ? ' serves this page' : '';
    item.querySelector('.what').replaceChildren(name, element('span', { className: 'more', textContent: more }));
    item.querySelector('button').disabled = !pid;
  }
}

function makeReplica(name) {
  const lamp = element('span', { className: 'lamp' });
  lamp.setAttribute('aria-hidden', 'true');
  const kill = element('button', { type: 'button', textContent: 'Kill' });
  kill.setAttribute('aria-label', `Kill replica ${name}`);
  kill.addEventListener('click', async () => {
    await ask(`/demo/replicas/${name}/kill`, { method: 'POST' }).catch(() => {});
    await readReplicas();
  });
  const item = element('li', { className: 'replica' }, lamp, element('span', { className: 'what' }), kill);
  item.dataset.name = name;
  return item;
}

if (demo) {
  readReplicas();
  setInterval(() => document.hidden || readReplicas(), 2_000);
}
