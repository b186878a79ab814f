export * from "diff/lib/diff/line.js";
