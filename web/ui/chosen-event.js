// The chosen event of a turn. Its number is part of the address, so that a link or a reload shows the same.
import { useLayoutEffect, useState } from "../vendor/hooks.js";

/**
 * Returns the number that the address has, or null, and a function that changes it.
 * @returns {[number | null, (n: number) => void]}
 */
export function useChosenEvent() {
  const [chosen, setChosen] = useState(eventOfAddress());
  useLayoutEffect(() => {
    const onHash = () => setChosen(eventOfAddress());
    addEventListener("hashchange", onHash);
    return () => removeEventListener("hashchange", onHash);
  }, []);
  const choose = (/** @type {number} */ n) => {
    setChosen(n);
    history.replaceState(null, "", `${location.pathname}${location.search}#event=${n}`);
  };
  return [chosen, choose];
}

/** Number -1 names what precedes the first event. */
function eventOfAddress() {
  const value = new URLSearchParams(location.hash.slice(1)).get("event") ?? "";
  return /^(?:-1|[0-9]{1,9})$/.test(value) ? Number(value) : null;
}
