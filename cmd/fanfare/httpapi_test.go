package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fanfare-io/fanfare/gen/openapi"
	"github.com/fanfare-io/fanfare/service/auth"
)

// Every unary call is reached as JSON over HTTP, on a store on which nothing was ever
// done, too.
func TestJSONOverHTTP(t *testing.T) {
	s := startEmbedded(t)
	site := siteURL(t, s.stdout)
	ok := func(p page) map[string]any {
		t.Helper()
		if p.status != http.StatusOK {
			t.Errorf("status %d: %s", p.status, p.body)
		}
		return p.fields
	}
	if p := get(t, site+"/v1/stream?channel=c&scope=s"); p.status != http.StatusNotFound || p.problem(t).Reason != "STREAM_NOT_FOUND" {
		t.Errorf("a stream that is not there: %+v", p)
	}
	if frames := ok(get(t, site+"/v1/frames?channel=c&scope=s"))["frames"]; len(frames.([]any)) != 0 {
		t.Errorf("frames of a stream that is not there: %v", frames)
	}
	if closed := ok(post(t, site+"/v1/close", `{"channel": "c", "scope": "s"}`)); closed["alreadyClosed"] != true {
		t.Errorf("closed a stream that is not there: %v", closed)
	}

	published := ok(post(t, site+"/v1/publish", publishJSON("c", "s", "one")))
	position := published["position"].(map[string]any)
	epoch, sequence := position["epoch"].(string), position["sequence"].(string)
	if sequence != "1" {
		t.Errorf("published at %v", position)
	}
	batch := ok(post(t, site+"/v1/publish-batch", `{"frames": [{"channel": "c", "scope": "s", "payload": "dHdv"}, {"channel": "d", "payload": "dGhyZWU="}]}`))
	if results := batch["results"].([]any); len(results) != 2 {
		t.Errorf("published a batch: %v", batch)
	}
	// A position is as everywhere over HTTP, or two numbers.
	for _, query := range []string{"after=%s-%s", "after.epoch=%s&after.sequence=%s"} {
		after := ok(get(t, site+"/v1/frames?channel=c&scope=s&limit=10&"+fmt.Sprintf(query, epoch, sequence)))
		frames := after["frames"].([]any)
		if len(frames) != 1 || frames[0].(map[string]any)["payload"] != "dHdv" {
			t.Errorf("%s, of the first: %v", query, after)
		}
	}
	stream := ok(get(t, site+"/v1/stream?channel=c&scope=s"))["stream"].(map[string]any)
	// 64-bit numbers are strings: JavaScript's numbers do not hold them.
	if head := stream["head"].(map[string]any); head["sequence"] != "2" || stream["subscribers"] != float64(0) {
		t.Errorf("the stream: %v", stream)
	}
	if streams := ok(get(t, site+"/v1/list-streams?page_size=1"))["streams"].([]any); len(streams) != 1 {
		t.Errorf("the first page of streams: %v", streams)
	}
	put := func(r *http.Request) { r.Method = http.MethodPut }
	ok(post(t, site+"/v1/policy", `{"policy": {"channel": "c", "backlog": "7"}}`, put))
	if policy := ok(get(t, site+"/v1/policy?channel=c"))["effective"].(map[string]any); policy["backlog"] != "7" {
		t.Errorf("the policy: %v", policy)
	}
	if policies := ok(get(t, site+"/v1/policies"))["policies"].([]any); len(policies) != 1 {
		t.Errorf("the policies: %v", policies)
	}
	if closed := ok(post(t, site+"/v1/close", `{"channel": "c", "scope": "s"}`)); closed["alreadyClosed"] != false || closed["last"].(map[string]any)["sequence"] != "2" {
		t.Errorf("closed: %v", closed)
	}
}

// What is wrong with a request over HTTP is told as JSON, with a code, a reason and,
// where one is at fault, the field.
func TestHTTPRefusals(t *testing.T) {
	s := startEmbedded(t)
	site := siteURL(t, s.stdout)
	mustRun(t, "", "publish", "c", "s", "--data", "x", "--server", s.address)
	method := func(m string) func(*http.Request) { return func(r *http.Request) { r.Method = m } }
	for _, c := range []struct {
		name, path, body string // no body: GET
		change           func(*http.Request)
		status           int
		code, reason     string
		want             string // of the message or the field
	}{
		{"outside a limit", "/v1/publish", publishJSON("", "s", "x"), nil, 400, "invalid_argument", "INVALID_FIELD", "frame.channel"},
		{"expectation", "/v1/publish", `{"frame": {"channel": "c", "scope": "s", "expectedSequence": "7"}}`, nil, 409, "aborted", "EXPECTATION_FAILED", ""},
		{"misspelt name", "/v1/publish", `{"frame": {"chanel": "c"}}`, nil, 400, "invalid_argument", "INVALID_FIELD", "chanel"},
		{"half a request", "/v1/publish", `{"frame":`, nil, 400, "invalid_argument", "INVALID_FIELD", "cannot be read"},
		{"no Base64", "/v1/publish", `{"frame": {"channel": "c", "payload": "?"}}`, nil, 400, "invalid_argument", "INVALID_FIELD", "Base64"},
		{"misspelt parameter", "/v1/stream?chanel=c", "", nil, 400, "invalid_argument", "INVALID_FIELD", "chanel"},
		{"no position", "/v1/frames?channel=c&after=7", "", nil, 400, "invalid_argument", "INVALID_FIELD", "EPOCH-SEQUENCE"},
		{"empty position", "/v1/frames?channel=c&after=", "", nil, 400, "invalid_argument", "INVALID_FIELD", "after"},
		{"two positions", "/v1/frames?channel=c&after=1-1&after=1-2", "", nil, 400, "invalid_argument", "INVALID_FIELD", "after is given 2 times"},
		{"a position in both forms", "/v1/frames?channel=c&after=1-1&after.epoch=1&after.sequence=1", "", nil, 400, "invalid_argument", "INVALID_FIELD", "either after=EPOCH-SEQUENCE"},
		{"half a position", "/v1/frames?channel=c&after.sequence=1", "", nil, 400, "invalid_argument", "INVALID_FIELD", "either after=EPOCH-SEQUENCE"},
		{"a position where there is none", "/v1/stream?channel=c&after=1-1", "", nil, 400, "invalid_argument", "INVALID_FIELD", "after"},
		{"repeated parameter", "/v1/frames?channel=c&limit=1&limit=2", "", nil, 400, "invalid_argument", "INVALID_FIELD", "limit is given 2 times"},
		{"one parameter by two names", "/v1/list-streams?page_size=1&pageSize=2", "", nil, 400, "invalid_argument", "INVALID_FIELD", "page_size is given 2 times"},
		{"unreadable parameter", "/v1/stream?channel=c%zz", "", nil, 400, "invalid_argument", "INVALID_FIELD", "query"},
		{"no number", "/v1/frames?channel=c&limit=many", "", nil, 400, "invalid_argument", "INVALID_FIELD", "limit"},
		{"no type", "/v1/publish", "{}", func(r *http.Request) { r.Header.Del("Content-Type") }, 415, "invalid_argument", "", "Content-Type"},
		{"a form's type", "/v1/publish", "{}", header("Content-Type", "text/plain"), 415, "invalid_argument", "", "Content-Type"},
		{"a form's type, to a method", "/fanfare.v1.FanfareService/Publish", "{}", header("Content-Type", "text/plain"), 415, "invalid_argument", "", "Content-Type"},
		{"another charset", "/v1/publish", "{}", header("Content-Type", "application/json; charset=latin1"), 415, "invalid_argument", "", "UTF-8"},
		{"another method", "/v1/publish", "", nil, 405, "unimplemented", "", "POST"},
		{"DELETE", "/v1/close", "{}", method(http.MethodDelete), 405, "unimplemented", "", "POST"},
		{"OPTIONS", "/v1/frames", "", method(http.MethodOptions), 405, "unimplemented", "", "GET"},
		{"PUT to a method", "/fanfare.v1.FanfareService/Publish", "{}", method(http.MethodPut), 405, "unimplemented", "", "POST"},
		{"unreadable timeout", "/fanfare.v1.FanfareService/GetStream", "{}", header("Connect-Timeout-Ms", "x"), 400, "invalid_argument", "", "invalid"},
		{"unknown encoding", "/fanfare.v1.FanfareService/GetStream", "{}", header("Content-Encoding", "br"), 415, "invalid_argument", "", "br"},
		{"a stream's type, to a unary call", "/fanfare.v1.FanfareService/Publish", "{}", header("Content-Type", "application/connect+json"), 415, "invalid_argument", "", "stream"},
		{"gRPC-Web as text", "/fanfare.v1.FanfareService/Publish", "AAAAAAA=", header("Content-Type", "application/grpc-web-text"), 415, "invalid_argument", "", "not as text"},
		{"gRPC over HTTP/1.1", "/fanfare.v1.FanfareService/Publish", "x", header("Content-Type", "application/grpc"), 505, "unimplemented", "", "HTTP/2"},
		{"text after the JSON", "/v1/publish", publishJSON("c", "s", "x") + " x", nil, 400, "invalid_argument", "INVALID_FIELD", "invalid value x"},
		{"a field twice", "/v1/publish", `{"frame": {"channel": "c", "channel": "d"}}`, nil, 400, "invalid_argument", "INVALID_FIELD", "duplicate field"},
		{"no such path", "/v1/publisch", "{}", nil, 404, "unimplemented", "", "openapi.json"},
		{"no such page", "/admin", "", nil, 404, "unimplemented", "", "openapi.json"},
		{"no such method", "/fanfare.v1.FanfareService/Unpublish", "{}", nil, 404, "unimplemented", "", "no such method"},
		{"no such service", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "{}", nil, 404, "unimplemented", "", ""},
		{"too large", "/v1/publish", publishJSON("c", "s", strings.Repeat("x", 8<<20)), nil, 413, "invalid_argument", "INVALID_FIELD", "at most"},
		{"frame too large", "/v1/publish", publishJSON("c", "s", strings.Repeat("x", 1<<20+1)), nil, 400, "invalid_argument", "INVALID_FIELD", "frame.payload"},
		{"gzip of 16 MiB", "/v1/publish", compressed(t, 16<<20), header("Content-Encoding", "gzip"), 413, "invalid_argument", "INVALID_FIELD", "decompressed"},
		{"no gzip", "/v1/publish", publishJSON("c", "s", "x"), header("Content-Encoding", "gzip"), 400, "invalid_argument", "INVALID_FIELD", "decompressed"},
		{"too short for gzip", "/v1/publish", "{}", header("Content-Encoding", "gzip"), 400, "invalid_argument", "INVALID_FIELD", "decompressed"},
		{"half of a gzip", "/v1/publish", compressed(t, 1<<20)[:50], header("Content-Encoding", "gzip"), 400, "invalid_argument", "INVALID_FIELD", "decompressed"},
		{"no streams", "/v1/signed-url", `{"streams": []}`, nil, 404, "unimplemented", "", "--signed-url-key-file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			change := []func(*http.Request){}
			if c.change != nil {
				change = append(change, c.change)
			}
			var p page
			if c.body == "" {
				p = get(t, site+c.path, change...)
			} else {
				p = post(t, site+c.path, c.body, change...)
			}
			problem := p.problem(t)
			if p.status != c.status || problem.Code != c.code || problem.Reason != c.reason || !strings.Contains(problem.Message+problem.Field, c.want) {
				t.Errorf("status %d: %+v", p.status, problem)
			}
		})
	}
	// It has survived.
	if p := post(t, site+"/v1/publish", publishJSON("c", "s", "after"), header("Content-Type", "application/json; charset=UTF-8")); p.status != http.StatusOK {
		t.Errorf("status %d: %s", p.status, p.body)
	}
}

// compressed is so many bytes of a JSON string, in gzip.
func compressed(t *testing.T, bytesUnpacked int) string {
	t.Helper()
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, `{"frame": {"channel": "`); err != nil {
		t.Fatal(err)
	}
	block := bytes.Repeat([]byte("a"), 1<<20)
	for range bytesUnpacked / len(block) {
		if _, err := w.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.String()
}

// A page whose name leads to this host (DNS rebinding) publishes and reads nothing, by
// no protocol; nor does one of another origin, unless it is allowed.
func TestForeignPagesOverHTTP(t *testing.T) {
	s := startEmbedded(t, "--http-allowed-origin", "https://*.allowed.example")
	site := siteURL(t, s.stdout)
	rebound := func(r *http.Request) { r.Host = "attacker.example:7480" }
	foreign := header("Origin", "https://attacker.example")
	allowed := header("Origin", "https://app.allowed.example")
	for name, request := range map[string]func(change ...func(*http.Request)) page{
		"JSON": func(c ...func(*http.Request)) page {
			return post(t, site+"/v1/publish", publishJSON("c", "s", "x"), c...)
		},
		"Connect": func(c ...func(*http.Request)) page {
			return post(t, site+"/fanfare.v1.FanfareService/Publish", publishJSON("c", "s", "x"), c...)
		},
		"reading": func(c ...func(*http.Request)) page { return get(t, site+"/v1/list-streams", c...) },
		"console": func(c ...func(*http.Request)) page { return get(t, site+"/console/", c...) },
		"events":  func(c ...func(*http.Request)) page { return get(t, site+"/v1/streams?channel=c&after=0", c...) }, // 400 by itself
	} {
		if p := request(rebound); p.status != http.StatusForbidden {
			t.Errorf("%s by another name: status %d, %s", name, p.status, p.body)
		}
		if p := request(foreign); p.status != http.StatusForbidden {
			t.Errorf("%s from another origin: status %d, %s", name, p.status, p.body)
		}
		if p := request(allowed); p.status == http.StatusForbidden {
			t.Errorf("%s from an origin that is allowed: status %d, %s", name, p.status, p.body)
		}
	}
	preflight := func(origin string) (int, http.Header) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, site+"/v1/publish", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Origin", origin)
		request.Header.Set("Access-Control-Request-Method", "POST")
		request.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
		response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode, response.Header
	}
	if status, h := preflight("https://app.allowed.example"); status >= 300 || h.Get("Access-Control-Allow-Origin") != "https://app.allowed.example" ||
		!strings.Contains(h.Get("Access-Control-Allow-Headers"), "authorization") {
		t.Errorf("preflight: status %d, %v", status, h)
	}
	if status, h := preflight("https://attacker.example"); h.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("preflight of another origin: status %d, %v", status, h)
	}
}

// The description is of what is served: each of its paths and methods answers, and the
// rules name no other.
func TestDescriptionOfHTTP(t *testing.T) {
	s := startEmbedded(t)
	site := siteURL(t, s.stdout)
	served := get(t, site+"/openapi.json")
	if served.body != string(openapi.Document) {
		t.Error("what is served is not the description")
	}
	var description struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(served.body), &description); err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Rules []struct{ Get, Post, Put string }
	}
	if err := json.Unmarshal(openapi.Rules, &rules); err != nil {
		t.Fatal(err)
	}
	for _, rule := range rules.Rules {
		for method, path := range map[string]string{"get": rule.Get, "post": rule.Post, "put": rule.Put} {
			if path != "" && description.Paths[path][method] == nil {
				t.Errorf("%s %s is not described", method, path)
			}
		}
	}
	if frames := string(description.Paths["/v1/frames"]["get"]); !strings.Contains(frames, `"name": "after"`) || strings.Contains(frames, `"name": "after.`) {
		t.Errorf("a position is not described as one parameter: %s", frames)
	}
	if len(rules.Rules) < 9 || len(description.Paths) <= len(rules.Rules) {
		t.Errorf("%d rules, and %d paths are described", len(rules.Rules), len(description.Paths))
	}
	for path, methods := range description.Paths {
		for method := range methods {
			// Nothing is right about these requests, but that there is something at the path.
			url := site + strings.NewReplacer("{channel}", "c", "{scope}", "s%00").Replace(path)
			if strings.HasPrefix(path, "/v1/streams") {
				url += "?last=x"
			}
			change := func(r *http.Request) { r.Method = strings.ToUpper(method) }
			p := get(t, url, change)
			if method != "get" {
				p = post(t, url, "{", change)
			}
			signing := path == "/v1/signed-url" // without a key
			if p.status == http.StatusMethodNotAllowed || p.status == http.StatusNotFound && !signing {
				t.Errorf("%s %s: status %d, %s", method, path, p.status, p.body)
			}
		}
	}
}

// Symptom: heartbeat was not described, and clients are made of the description. Parameters
// that the server does not know are refused, with those that it does.
func TestParametersOfEventStreamsAreDescribed(t *testing.T) {
	s := startEmbedded(t)
	var description struct {
		Paths map[string]struct {
			Get struct {
				Parameters []struct {
					Name, In string
					Ref      string `json:"$ref"`
				}
			}
		}
		Components struct {
			Parameters map[string]struct{ Name, In string }
		}
	}
	if err := json.Unmarshal(openapi.Document, &description); err != nil {
		t.Fatal(err)
	}
	refused := get(t, siteURL(t, s.stdout)+"/v1/streams?channel=c&nothing=1").problem(t)
	list := regexp.MustCompile("none of (.*)").FindStringSubmatch(refused.Message)
	if refused.Field != "nothing" || list == nil {
		t.Fatalf("%+v", refused)
	}
	known := strings.Split(list[1], ", ")
	slices.Sort(known)
	for path, inPath := range map[string][]string{"/v1/streams": nil, "/v1/streams/{channel}/{scope}": {"channel", "scope", "stream"}} {
		var described []string
		for _, p := range description.Paths[path].Get.Parameters {
			if p.Ref != "" {
				referred := description.Components.Parameters[p.Ref[strings.LastIndex(p.Ref, "/")+1:]]
				p.Name, p.In = referred.Name, referred.In
			}
			if p.In == "query" {
				described = append(described, p.Name)
			}
		}
		slices.Sort(described)
		want := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return slices.Contains(inPath, name) })
		if !slices.Equal(described, want) {
			t.Errorf("of %s are described %q, the server knows %q", path, described, want)
		}
	}
	if !strings.Contains(string(openapi.Document), "fanfare.heartbeat") {
		t.Error("the event that heartbeat=event asks for is not described")
	}
}

// Symptom: event streams and signed URLs went by the first of two Authorization headers, where
// calls refuse both; whoever checks the other one in front has checked the wrong one.
func TestTwoTokensAreRefused(t *testing.T) {
	secret, key := secretFile(t)
	s := startEmbedded(t, "--jwt-secret-file", secret, "--signed-url-key-file", writeFile(t, "key", strings.Repeat("k", 40)), "--http-cookie", "session")
	site := siteURL(t, s.stdout)
	all := []auth.Permission{{Channel: "*", Scope: "*"}}
	token := signToken(t, key, time.Hour, auth.Permissions{Subscribe: all, Publish: all})
	post(t, site+"/v1/publish", publishJSON("c", "s", "x"), bearer(token))
	const signing = `{"streams": [{"channel": "c", "scope": "s"}]}`
	for name, ask := range map[string]func(change ...func(*http.Request)) page{
		"a call":       func(c ...func(*http.Request)) page { return get(t, site+"/v1/frames?channel=c&scope=s", c...) },
		"a signed URL": func(c ...func(*http.Request)) page { return post(t, site+"/v1/signed-url", signing, c...) },
		"Connect": func(c ...func(*http.Request)) page {
			return post(t, site+"/fanfare.v1.FanfareService/GetStream", `{"channel": "c", "scope": "s"}`, c...)
		},
	} {
		if p := ask(bearer(token)); p.status != http.StatusOK {
			t.Errorf("%s with one token: status %d, %s", name, p.status, p.body)
		}
		if p := ask(bearer(token), header("Cookie", "session="+token), another(token)); p.status != http.StatusUnauthorized {
			t.Errorf("%s with two tokens: status %d, %s", name, p.status, p.body)
		}
	}
	if tab := open(t, nil, site+"/v1/streams/c/s", bearer(token)); tab.status != http.StatusOK {
		t.Errorf("an event stream with one token: status %d", tab.status)
	}
	if tab := open(t, nil, site+"/v1/streams/c/s", bearer(token), another(token)); tab.status != http.StatusUnauthorized {
		t.Errorf("an event stream with two tokens: status %d", tab.status)
	}
}

// another adds a second header with a token.
func another(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Add("Authorization", "Bearer "+token) }
}
