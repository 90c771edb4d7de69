// Writing a message.
import { toEnd } from './messages.js';
import { keepName, myName } from './names.js';
import { ask, byId, posting, room } from './page.js';

const form = byId('composer');
const textField = byId('text');

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// post is tried again where it may pass. The key stays the same, so that what was stored
// although nobody could say so is not stored twice.
async function post(body) {
  const request = posting({ key: crypto.randomUUID(), author: myName(), body });
  for (let attempt = 1; ; attempt++) {
    try {
      return await ask(`/rooms/${room}/messages`, request);
    } catch (error) {
      if (error.final || attempt === 5) {
        throw error;
      }
      await pause(200 * 2 ** attempt * (0.5 + Math.random()));
    }
  }
}

form.addEventListener('submit', async (event) => {
  event.preventDefault();
  const body = textField.value.trim();
  if (!body || byId('send').disabled) {
    return;
  }
  keepName();
  byId('send').disabled = true;
  byId('problem').textContent = '';
  try {
    await post(body);
    textField.value = '';
    form.dispatchEvent(new Event('sent'));
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
    form.requestSubmit();
  }
});

if (matchMedia('(pointer: fine)').matches) {
  textField.focus();
}
