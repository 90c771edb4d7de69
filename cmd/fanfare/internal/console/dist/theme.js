var e=null;try{e=localStorage.getItem("fanfare.theme")}catch{}e!=="light"&&e!=="dark"&&(e=matchMedia("(prefers-color-scheme: dark)").matches?"dark":"light");document.documentElement.dataset.theme=e;
