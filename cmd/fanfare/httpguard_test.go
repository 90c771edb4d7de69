package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Symptom: after a panic a client saw nothing but a connection that was closed: what said
// that there is a fault was dropped with it. It arrives, over HTTP/1.1 and HTTP/2; an
// answer that has begun is not gone on with, and ends as one that is not whole.
func TestPanicsAreAnswered(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	server := httptest.NewUnstartedServer(guardedWeb(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begun" {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
		}
		panic("the cause")
	}), slog.New(slog.NewTextHandler(&log, nil))))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	for _, client := range []*http.Client{server.Client(), unencryptedHTTP2(t)} {
		response, err := client.Get(server.URL)
		if err != nil {
			t.Error(err)
			continue
		}
		// Its end may be that of the connection.
		body, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if problem := (page{status: response.StatusCode, body: string(body)}).problem(t); response.StatusCode != http.StatusInternalServerError || problem.Code != "internal" {
			t.Errorf("%s: status %d, %+v", response.Proto, response.StatusCode, problem)
		}
		if response, err = client.Get(server.URL + "/begun"); err != nil {
			t.Error(err)
			continue
		}
		body, err = io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil || string(body) != "half" {
			t.Errorf("%s: an answer that has begun goes on as %q, %v", response.Proto, body, err)
		}
	}
	// Symptom: an EventSource whose request had met a panic never came again.
	for _, client := range []*http.Client{{Transport: &http.Transport{DisableKeepAlives: true}}, unencryptedHTTP2(t)} {
		for _, path := range []string{"/v1/streams?channel=c", "/v1/streams/c/s"} {
			if response, err := client.Get(server.URL + path); err == nil {
				response.Body.Close()
				t.Errorf("%s is answered %s, on which EventSource gives up", path, response.Status)
			}
		}
	}
	server.Close()
	if n := strings.Count(log.String(), "the cause"); n != 8 {
		t.Errorf("%d panics of 8 are in the log: %s", n, log.String())
	}
}
