// Small pieces that several views have.
import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';

/** A message that stays; it is read aloud when it appears. */
export function Notice({ kind, children }: { kind: 'bad' | 'warn' | 'good'; children: ComponentChildren }) {
  return (
    <div class={`notice ${kind}`} role={kind === 'bad' ? 'alert' : 'status'}>
      {children}
    </div>
  );
}

/** A command with a button that copies it. */
export function Command({ label, text }: { label: string; text: string }) {
  const [said, say] = useState('');
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      say('Copied');
    } catch {
      say('Select it and copy');
    }
  };
  return (
    <div class="command">
      <div class="command-head">
        <span>{label}</span>
        <button type="button" class="quiet small" onClick={copy} aria-label={`Copy: ${label}`}>
          <span aria-live="polite">{said || 'Copy'}</span>
        </button>
      </div>
      <pre tabIndex={0} role="group" aria-label={label}>
        {text}
      </pre>
    </div>
  );
}

/** A dialog that is open while it is there. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const dialog = element.current!;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      dialog.close();
      // What opened it may be gone by now; where nothing has the focus, the keyboard would
      // go on from the beginning of the page.
      const back = before instanceof HTMLElement && before !== document.body && before.isConnected;
      (back ? before : document.getElementById('main'))?.focus({ preventScroll: true });
    };
  }, []);
  return (
    <dialog
      ref={element}
      aria-labelledby="dialog-title"
      onCancel={(e) => {
        e.preventDefault();
        props.onClose();
      }}
    >
      <h2 id="dialog-title">{props.title}</h2>
      {props.children}
    </dialog>
  );
}

export function Fact({ name, wide, children }: { name: string; wide?: boolean; children: ComponentChildren }) {
  return (
    <div class={`fact ${wide ? 'wide' : ''}`}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}
