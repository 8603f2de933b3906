import { render } from "preact";
import { findSource } from "./data/source";
import { App } from "./frame/app";
import { failure, start } from "./state/live";
import { keepAddress } from "./state/places";
import { closeMenus } from "./frame/keys";

render(<App />, document.getElementById("page")!);
closeMenus();
keepAddress();
findSource()
  .then(start)
  .catch((problem: unknown) => {
    failure.value = `The run could not be read: ${String(problem)}`;
  });
