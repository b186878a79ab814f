// Hooks that views share.
import { ApiFailure, isAbort } from "../lib/api.js";
import { keyVersion } from "../lib/session.js";
import { useEffect, useLayoutEffect, useState } from "../vendor/hooks.js";
import { effect } from "../vendor/signals-core.js";

/**
 * Returns the value of a signal, and draws again when it changes.
 * @template T
 * @param {import("../vendor/signals-core.js").Signal<T>} source
 * @returns {T}
 */
export function useSignal(source) {
  const [value, setValue] = useState(source.peek());
  useEffect(() => effect(() => setValue(() => source.value)), [source]);
  return value;
}

/** Tells whether a media query fits, and draws again when that changes. @type {(query: string) => boolean} */
export function useMedia(query) {
  const [fits, setFits] = useState(matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const onChange = () => setFits(list.matches);
    list.addEventListener("change", onChange);
    return () => list.removeEventListener("change", onChange);
  }, [query]);
  return fits;
}

/**
 * @template T
 * @typedef {{value: T | null, failure: ApiFailure | null}} Loaded Both are null while it loads.
 */

/**
 * Loads a value, again when one of `inputs` or the key changes.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {unknown[]} inputs
 * @returns {Loaded<T>}
 */
export function useLoaded(load, inputs) {
  const [state, setState] = useState(/** @type {Loaded<T>} */ ({ value: null, failure: null }));
  const version = useSignal(keyVersion);
  useEffect(() => {
    const abort = new AbortController();
    load(abort.signal).then(
      (value) => abort.signal.aborted || setState({ value, failure: null }),
      (error) => {
        if (!isAbort(error)) setState({ value: null, failure: toFailure(error) });
      },
    );
    return () => abort.abort();
  }, [...inputs, version]);
  return state;
}

/** Returns what to show of an error: of one that is no answer of the server, its own text. @param {unknown} error */
export function toFailure(error) {
  return error instanceof ApiFailure ? error : new ApiFailure(0, `The reply cannot be read: ${String(error)}`);
}

/** Time after which the address names the chosen event, in milliseconds: browsers drop changes that come too often. */
const ADDRESS_MS = 100;
let addressTimer = 0;

/**
 * Returns the number of the chosen event of a turn, or null, and a function that changes it. It is part of the address,
 * so that a link or a reload shows the same.
 * @returns {[number | null, (n: number) => void]}
 */
export function useChosenEvent() {
  const [chosen, setChosen] = useState(eventOfAddress);
  useLayoutEffect(() => {
    const onHash = () => setChosen(eventOfAddress());
    addEventListener("hashchange", onHash);
    return () => removeEventListener("hashchange", onHash);
  }, []);
  const choose = (/** @type {number} */ n) => {
    setChosen(n);
    clearTimeout(addressTimer);
    addressTimer = setTimeout(() => history.replaceState(null, "", `${location.search}#event=${n}`), ADDRESS_MS);
  };
  return [chosen, choose];
}

/** Number -1 names what precedes the first event. */
function eventOfAddress() {
  const value = new URLSearchParams(location.hash.slice(1)).get("event") ?? "";
  return /^(?:-1|[0-9]{1,9})$/.test(value) ? Number(value) : null;
}
