// Opens or closes the instructions of all lines of a kernel.
for (const button of document.querySelectorAll("[data-open]")) button.onclick = () => {
  for (const part of button.closest("section").querySelectorAll(".source details")) part.open = !!button.dataset.open;
};
