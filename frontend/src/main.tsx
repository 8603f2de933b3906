import { render } from "preact";
import { Details } from "./details";
import { Header } from "./header";
import { start } from "./live";
import { findSource } from "./source";
import { failure, keepAddress } from "./state";
import { Tree } from "./tree";

function Page() {
  return (
    <>
      <Header />
      {failure.value && (
        <p class="failure" role="alert">
          {failure.value}
        </p>
      )}
      <main>
        <Tree />
        <Details />
      </main>
    </>
  );
}

render(<Page />, document.getElementById("page")!);
start(findSource()).then(keepAddress, (problem: unknown) => {
  failure.value = `The run could not be read: ${String(problem)}`;
});
