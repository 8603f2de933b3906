// Holds the page in a frame and carries its questions to the kernel, and the answers back.
export default {
  render({ model, el }) {
    const frame = document.createElement("iframe");
    frame.title = "Torchglass";
    frame.style.cssText = "width:100%;border:1px solid #8884;border-radius:8px";
    frame.style.height = `${model.get("height")}px`;
    // No origin of its own: whatever a model's names hold, the notebook is out of reach.
    frame.sandbox = "allow-scripts allow-downloads";
    frame.srcdoc = model.get("page");
    const ask = (event) => {
      if (event.source === frame.contentWindow && event.data?.torchglass) model.send(event.data.torchglass);
    };
    const tell = (content) => frame.contentWindow?.postMessage({ torchglass: content }, "*");
    addEventListener("message", ask);
    model.on("msg:custom", tell);
    el.append(frame);
    return () => {
      removeEventListener("message", ask);
      model.off("msg:custom", tell);
    };
  },
};
