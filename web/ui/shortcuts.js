// Shortcuts of a single key can be switched off: speech input types letters (WCAG 2.1.4). The choice lasts for the tab.
import { html } from "../lib/html.js";
import { useState } from "../vendor/hooks.js";

const STORAGE_NAME = "antiphon.shortcuts";

export function shortcutsOn() {
  return sessionStorage.getItem(STORAGE_NAME) !== "off";
}

export function ShortcutSwitch() {
  const [on, setOn] = useState(shortcutsOn());
  const change = () => {
    sessionStorage.setItem(STORAGE_NAME, on ? "off" : "on");
    setOn(!on);
  };
  return html`<label><input type="checkbox" checked=${on} onChange=${change} /> single-key shortcuts</label>`;
}
