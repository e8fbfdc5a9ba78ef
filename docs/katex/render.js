// pymdownx.arithmatex leaves formulas as \( ... \) and \[ ... \], which can be read without this script too
document.addEventListener("DOMContentLoaded", () => {
  renderMathInElement(document.body, {
    delimiters: [
      { left: "\\(", right: "\\)", display: false },
      { left: "\\[", right: "\\]", display: true },
    ],
  });
});
