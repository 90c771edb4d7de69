package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	maxNameCharacters = 40
	maxBodyCharacters = 4000
	// maxRequestBytes is enough for the longest body, every character escaped.
	maxRequestBytes = 64 << 10
	// databaseTimeout bounds what a request asks of the database.
	databaseTimeout = 10 * time.Second
)

// policy lets pages load and run nothing but what this site serves: what people write
// is text, whatever it looks like.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

var (
	roomForm = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)
	uuidForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

	//go:embed static
	files embed.FS

	//go:embed page.html
	pageHTML string
	page     = template.Must(template.New("page").Parse(pageHTML))
)

// web serves the chat's pages and takes what they send. Any number of servers may
// do so; each keeps nothing but what is in the database.
type web struct {
	pool *pgxpool.Pool
	// name tells the servers apart in what they write.
	name string
	// demo is set where replicas may be killed from the page.
	demo   bool
	logger *slog.Logger
}

// handler refuses what another site's page had a browser send.
func (w *web) handler() http.Handler {
	static, err := fs.Sub(files, "static")
	if err != nil {
		panic(err) // the directory is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /favicon.ico", http.RedirectHandler("/static/icon.svg", http.StatusSeeOther))
	mux.Handle("GET /{$}", http.RedirectHandler("/rooms/lobby", http.StatusSeeOther))
	for pattern, serve := range map[string]http.HandlerFunc{
		"GET /rooms/{room}":           w.showRoom,
		"GET /rooms/{room}/history":   w.showHistory,
		"POST /rooms/{room}/messages": w.takeMessage,
		"POST /rooms/{room}/activity": w.takeActivity,
	} {
		mux.HandleFunc(pattern, func(response http.ResponseWriter, r *http.Request) {
			if !roomForm.MatchString(r.PathValue("room")) {
				w.fail(response, r, errNoRoom)
				return
			}
			serve(response, r)
		})
	}
	mux.Handle("GET /static/", http.StripPrefix("/static", http.FileServerFS(static)))
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		header := response.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		ctx, cancel := context.WithTimeout(r.Context(), databaseTimeout)
		defer cancel()
		mux.ServeHTTP(response, r.WithContext(ctx))
	}))
}

// pageData is what page.html shows.
type pageData struct {
	Room     room
	Rooms    []room
	Messages []storedMessage
	// Position is where the messages end; "" if there are none.
	Position         string
	Demo             bool
	MaxName, MaxBody int
}

func (w *web) showRoom(response http.ResponseWriter, r *http.Request) {
	all, err := rooms(r.Context(), w.pool)
	if err != nil {
		w.fail(response, r, err)
		return
	}
	name := r.PathValue("room")
	at := slices.IndexFunc(all, func(r room) bool { return r.Name == name })
	if at < 0 {
		w.fail(response, r, errNoRoom)
		return
	}
	messages, err := history(r.Context(), w.pool, name)
	if err != nil {
		w.fail(response, r, err)
		return
	}
	var text strings.Builder
	err = page.Execute(&text, pageData{
		Room: all[at], Rooms: all, Messages: messages, Position: positionAfter(messages),
		Demo: w.demo, MaxName: maxNameCharacters, MaxBody: maxBodyCharacters,
	})
	if err != nil {
		w.fail(response, r, err)
		return
	}
	response.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprint(response, text.String())
}

// positionAfter is the position of the last message. A page without messages begins
// with the oldest frame there is.
func positionAfter(messages []storedMessage) string {
	if len(messages) == 0 {
		return ""
	}
	return messages[len(messages)-1].position()
}

func (w *web) showHistory(response http.ResponseWriter, r *http.Request) {
	messages, err := history(r.Context(), w.pool, r.PathValue("room"))
	if err != nil {
		w.fail(response, r, err)
		return
	}
	answer(response, http.StatusOK, struct {
		Messages []storedMessage `json:"messages"`
		Position string          `json:"position"`
	}{append([]storedMessage{}, messages...), positionAfter(messages)})
}

func (w *web) takeMessage(response http.ResponseWriter, r *http.Request) {
	var m message
	if !w.read(response, r, &m) {
		return
	}
	if err := m.check(); err != nil {
		refuse(response, http.StatusBadRequest, err)
		return
	}
	m.Sent, m.Server = time.Now().UTC().Truncate(time.Millisecond), w.name
	stored, err := post(r.Context(), w.pool, r.PathValue("room"), m)
	if err != nil {
		w.fail(response, r, err)
		return
	}
	answer(response, http.StatusCreated, map[string]string{"position": stored.position()})
}

func (w *web) takeActivity(response http.ResponseWriter, r *http.Request) {
	var a activity
	if !w.read(response, r, &a) {
		return
	}
	if err := a.check(); err != nil {
		refuse(response, http.StatusBadRequest, err)
		return
	}
	if err := show(r.Context(), w.pool, r.PathValue("room"), a); err != nil {
		w.fail(response, r, err)
		return
	}
	response.WriteHeader(http.StatusNoContent)
}

// read decodes a request into what to points to, or answers why that cannot be.
func (w *web) read(response http.ResponseWriter, r *http.Request, to any) bool {
	decoder := json.NewDecoder(http.MaxBytesReader(response, r.Body, maxRequestBytes))
	err := decoder.Decode(to)
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		refuse(response, http.StatusRequestEntityTooLarge, fmt.Errorf("a request has at most %d bytes", tooLarge.Limit))
		return false
	}
	if err != nil {
		refuse(response, http.StatusBadRequest, errors.New("the request is not JSON of the expected form"))
		return false
	}
	return true
}

// check completes a message that a page sent, or says what is wrong with it.
func (m *message) check() (err error) {
	if !uuidForm.MatchString(m.Key) {
		return errors.New("key is not a UUID, in lower case")
	}
	if m.Author, err = checkText("author", m.Author, maxNameCharacters, ""); err != nil {
		return err
	}
	m.Body, err = checkText("body", m.Body, maxBodyCharacters, "\n\t")
	return err
}

func (a *activity) check() (err error) {
	if !slices.Contains([]string{"arrived", "here", "typing", "left"}, a.Kind) {
		return errors.New("kind is not arrived, here, typing or left")
	}
	a.Name, err = checkText("name", a.Name, maxNameCharacters, "")
	return err
}

// checkText returns a text without the spaces around it. Control characters are refused
// unless they are allowed: PostgreSQL has no place for some of them, and people none.
func checkText(field, text string, maxCharacters int, allowed string) (string, error) {
	text = strings.TrimSpace(text)
	n := utf8.RuneCountInString(text)
	if n < 1 || n > maxCharacters {
		return "", fmt.Errorf("%s has %d characters, it must have 1 to %d", field, n, maxCharacters)
	}
	for _, c := range text {
		if unicode.IsControl(c) && !strings.ContainsRune(allowed, c) {
			return "", fmt.Errorf("%s has the control character %U", field, c)
		}
	}
	return text, nil
}

// fail answers an error of the store. What a driver says is for the log.
func (w *web) fail(response http.ResponseWriter, r *http.Request, err error) {
	switch {
	case errors.Is(err, errNoRoom):
		refuse(response, http.StatusNotFound, err)
	case errors.Is(err, errKeyUsed):
		refuse(response, http.StatusConflict, err)
	case r.Context().Err() != nil && !errors.Is(r.Context().Err(), context.DeadlineExceeded):
		// Nobody is there to be answered.
	default:
		w.logger.Error("a request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		response.Header().Set("Retry-After", "1")
		refuse(response, http.StatusServiceUnavailable, errors.New("the database does not answer, please try again"))
	}
}

func refuse(response http.ResponseWriter, status int, err error) {
	answer(response, status, map[string]string{"error": err.Error()})
}

func answer(response http.ResponseWriter, status int, value any) {
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	_ = json.NewEncoder(response).Encode(value) // only a client that is gone fails
}
