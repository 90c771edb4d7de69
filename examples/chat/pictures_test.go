package main

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/fanfare-io/fanfare/clientlib/browser/browsertest"
)

// maxPictureBytes keeps the documents small.
const maxPictureBytes = 150_000

// What the pictures show people talk about.
var conversation = []struct{ room, author, body string }{
	{"kitchen", "Cleo", "There is soup."},
	{"engine-room", "Dmitri", "Replica C is on the new version."},
	{"engine-room", "Dmitri", "B follows in a minute."},
	{"lobby", "Cleo", "Good morning! Is the new board up?"},
	{"lobby", "Ben", "Since last night. Every order shows up there when its transaction commits, and none that was rolled back."},
	{"lobby", "Ann", "And if I reload it in the middle of the rush?"},
	{"lobby", "Ben", "Then it has the orders and the position where they end, and goes on from there."},
	{"lobby", "Dmitri", "I am going to upgrade the replicas now, one by one. Tell me if you notice anything."},
	{"lobby", "Cleo", "مرحبا from the field office: nothing so far"},
}

// The pictures of the documents: they go to the directory that FANFARE_PICTURES names
// or, if it names none, nowhere. See README.md.
func TestPictures(t *testing.T) {
	dir := cmp.Or(os.Getenv("FANFARE_PICTURES"), t.TempDir())
	s := startDemo(t)
	talk := func(from, to int) {
		for _, c := range conversation[from:to] {
			if status, answer := request(t, http.MethodPost, s.url+"/rooms/"+c.room+"/messages", messageJSON(newKey(), c.author, c.body)); status != http.StatusCreated {
				t.Fatalf("a message is answered %d %s", status, answer)
			}
		}
	}
	act := func(kind string, names ...string) {
		for _, name := range names {
			if status, answer := request(t, http.MethodPost, s.url+"/rooms/lobby/activity", fmt.Sprintf(`{"kind":%q,"name":%q}`, kind, name)); status != http.StatusNoContent {
				t.Fatalf("an activity is answered %d %s", status, answer)
			}
		}
	}
	talk(3, 6)
	page := s.open(t, browsertest.Start(t), "lobby", "Ann")
	page.Size(1100, 720, false)
	serving := replicaOf(page)
	page.Run(fmt.Sprintf(`document.querySelector(".replica[data-name=%s] button").click()`, serving)) // the pointer is not in the picture
	page.Wait("the page goes on elsewhere", live+" && "+notes+".length === 1", notes)
	talk(6, len(conversation))
	talk(0, 3)
	act("here", "Ben", "Cleo", "Dmitri")
	page.Run(`document.querySelector("#text").focus()`)

	take := func(name string) {
		t.Helper()
		act("typing", "Dmitri")
		page.Wait("somebody types", `document.querySelector("#typing").textContent === "Dmitri is typing…"`)
		page.Run(`document.getAnimations().forEach((animation) => animation.finish())`)
		path := filepath.Join(dir, name)
		page.Screenshot(path)
		if info, err := os.Stat(path); err != nil || info.Size() > maxPictureBytes || info.Size() < maxPictureBytes/20 {
			t.Errorf("%s has %d bytes, %v", name, info.Size(), err)
		}
	}
	page.Prefer("prefers-color-scheme", "light")
	take("chat-light.png")
	page.Prefer("prefers-color-scheme", "dark")
	take("chat-dark.png")
	page.Size(390, 780, true)
	page.Prefer("prefers-color-scheme", "light")
	page.Run(`document.querySelector("[aria-current]").scrollIntoView({ inline: "center" })`) // as when it is loaded
	take("chat-phone.png")
	if wide := browsertest.Eval[bool](page, `document.documentElement.scrollWidth > innerWidth`); wide {
		t.Error("the page is wider than a phone")
	}
}
