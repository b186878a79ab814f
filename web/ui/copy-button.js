// A button that copies a text. Without access to the clipboard, it selects the text's element instead.
import { html } from "../lib/html.js";
import { useState } from "../vendor/hooks.js";

/** @param {{text: string, of: string, label: string}} props `of`: id of the element that shows the text. */
export function CopyButton({ text, of, label }) {
  const [state, setState] = useState("copy");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setState("copied");
    } catch {
      const element = document.getElementById(of);
      if (element !== null) getSelection()?.selectAllChildren(element);
      setState("selected");
    }
    setTimeout(() => setState("copy"), 2000);
  };
  return html`<button type="button" class="copy" aria-label=${`Copy ${label}`} onClick=${copy}>
    <span aria-live="polite">${state}</span>
  </button>`;
}
