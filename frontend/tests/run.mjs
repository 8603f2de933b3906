// Runs the tests of the page's logic with Node's own test runner, bundled by what builds the page.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = mkdtempSync(path.join(tmpdir(), "torchglass-page-tests-"));
try {
  const entryPoints = readdirSync(here).filter((file) => file.endsWith(".test.ts"));
  await build({
    entryPoints: entryPoints.map((file) => path.join(here, file)),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    platform: "node",
    format: "esm",
    logLevel: "warning",
  });
  const bundles = readdirSync(out).map((file) => path.join(out, file));
  process.exitCode = spawnSync(process.execPath, ["--test", ...bundles], { stdio: "inherit" }).status ?? 1;
} finally {
  rmSync(out, { recursive: true });
}
