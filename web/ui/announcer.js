// Tells screen readers about streamed text, at most every two seconds: each piece would interrupt the one before.
import { html } from "../lib/html.js";
import { useEffect, useRef, useState } from "../vendor/hooks.js";

const INTERVAL_MS = 2000;

/** @param {{text: string, running: boolean}} props Announces what `text` has gained. */
export function Announcer({ text, running }) {
  const [message, setMessage] = useState("");
  const latest = useRef(text);
  const announced = useRef(0);
  latest.current = text;
  useEffect(() => {
    const announce = () => {
      if (latest.current.length < announced.current) announced.current = 0;
      if (latest.current.length > announced.current) setMessage(latest.current.slice(announced.current));
      announced.current = latest.current.length;
    };
    if (!running) return announce();
    const timer = setInterval(announce, INTERVAL_MS);
    return () => clearInterval(timer);
  }, [running]);
  return html`<div class="unseen" role="status">${message}</div>`;
}
