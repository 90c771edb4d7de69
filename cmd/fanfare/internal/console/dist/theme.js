try{let e=localStorage.getItem("fanfare.theme");(e==="light"||e==="dark")&&(document.documentElement.dataset.theme=e)}catch{}
