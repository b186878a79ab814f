// Shapes of values that modules of the page pass on. The type checker reads this file; a browser never does.

/** A JSON object of the server: any of its fields may be missing, or of another type than the API says. */
type Json = Record<string, any>;
/** Why something could not be done, for people. */
type Fault = { message: string } | null;

/** A summary of a turn. What is not known is null, or empty. */
type Turn = {
  id: string;
  at: Date | null;
  api: string;
  model: string;
  status: string;
  /** Why the turn ended; empty while it runs. */
  cause: string;
  /** Id of the stop token, stop string, limit or code, by the cause. */
  detail: string;
  /** Says in a sentence why the turn ended. */
  sentence: string;
  input: number | null;
  cached: number | null;
  output: number | null;
  seconds: number | null;
  tools: string[];
  /** The last text of the user, shortened; empty without a record. */
  excerpt: string;
  /** Sentences about calls of tools that were not offered. */
  notes: string[];
};

/** The log of a turn, as far as it was read. */
type TurnLog = {
  fold: import("./lib/fold.js").EventFold;
  /** Each line of the log without its event, which the fold has. */
  lines: Json[];
  /** Number of lines so far. */
  count: number;
  reading: boolean;
  failure: Fault;
};

/** A reply that streams. The response is null before the first event. */
type Reply = { response: Json | null; running: boolean; failure: Fault };

/** Numbers of the first and the last event of a row. */
type Row = { first: number; last: number };
type RowOptions = { merge: boolean; itemsOnly: boolean; search: string };

/** A step of a path in a response: the name of a field, or an index. */
type Step = string | number;
/** What an event does to the response. */
type Change =
  | { kind: "response"; terminal: boolean }
  | { kind: "set"; path: Step[]; value: unknown }
  | { kind: "append"; stream: string; path: Step[]; text: string; logprobs: unknown[] }
  | { kind: "text"; stream: string; path: Step[]; text: string; logprobs: unknown }
  | { kind: "none" };
/** A text that grows by deltas. */
type TextStream = {
  /** Path of the text below its item. */
  path: (event: Json) => Step[];
  /** Field of the `done` event that holds the whole text. */
  whole: string;
};
/** The deltas of one text. */
type GrowingText = {
  path: Step[];
  /** Numbers of the delta events, ascending. */
  events: number[];
  /** Length of the text after each of them, in UTF-16 units. */
  ends: number[];
  pieces: string[];
  /** The pieces in one string; shorter than they are while more arrive. */
  text: string;
  logprobs: unknown[];
  logprobEnds: number[];
  /** Number of the event that sets the whole text; infinite before. */
  sealedAt: number;
};

/** A token that might have been generated. */
type Alternative = { id: unknown; text: string; logprob: number | null };
type OutputToken = Alternative & {
  /** The most likely tokens, most likely first. */
  top: Alternative[];
  /** Number of the last event of the token's step. */
  event: number;
};

/** Something that an API sends: the name of an event, if it has one, and its data. */
type Frame = { name: string; data: unknown };
/** Frames by the number of the last event that was read. */
type Reading = ReadonlyMap<number, Frame[]>;

/** A cell of the state machine's table. */
type Cell = { next: string; verbs: string[]; guard: string };
type StateTable = { states: string[]; inputs: string[]; cells: Map<string, Cell> };

/** A part of two texts that both have, or one of them. */
type Difference = { kind: "same" | "added" | "removed"; text: string };

type LiveFrame = ReturnType<typeof import("./lib/live.js").readFrame>;
/** The request that a form edits, as its texts. */
type Draft = ReturnType<typeof import("./lib/play.js").readDraft>;
