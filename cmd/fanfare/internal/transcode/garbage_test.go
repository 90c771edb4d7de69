package transcode

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"

	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// garbageWorld is one whose server answers whatever it is asked.
func garbageWorld(t *testing.T) *world {
	t.Helper()
	return newWorld(t, &upstreamServer{getStream: func(context.Context) (*fanfarev1.GetStreamResponse, error) {
		return &fanfarev1.GetStreamResponse{}, nil
	}}, Config{})
}

// post returns what is answered: the status, and the text with the headers that gRPC-Web
// has instead of one.
func (w *world) post(t *testing.T, path, media, encoding string, body []byte) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", media)
	if strings.HasPrefix(media, "application/grpc") {
		request.Header.Set("Grpc-Encoding", encoding)
	} else if encoding != "" {
		request.Header.Set("Content-Encoding", encoding)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text) + answer.Header.Get("Grpc-Status") + " " + answer.Header.Get("Grpc-Message")
}

// What is wrong with a request is the client's fault, in every encoding, and is said in few
// words.
//
// Symptom: Connect in Protocol Buffers was told internal of bytes that are no message, and a
// long number was told back whole, cut off in the midst. Cause: only what the transcoder
// reads was known to be the request's fault, and its words were passed on at any length.
func TestGarbageIsTheClientsFault(t *testing.T) {
	w := garbageWorld(t)
	if code, text := w.post(t, fanfarev1.FanfareService_GetStream_FullMethodName, "application/proto", "", []byte("\xff\xff\xff")); code != http.StatusBadRequest || !strings.Contains(text, "invalid_argument") {
		t.Errorf("bytes that are no message: %d, %s", code, text)
	}
	if code, text := w.post(t, fanfarev1.FanfareService_GetStream_FullMethodName, "application/proto", "", nil); code != http.StatusOK {
		t.Errorf("an empty message: %d, %s", code, text)
	}
	if _, text := w.post(t, fanfarev1.FanfareService_Subscribe_FullMethodName, "application/connect+proto", "", append(envelope(3), 0xff, 0xff, 0xff)); !strings.Contains(text, "invalid_argument") {
		t.Errorf("a subscription that is no message: %q", text)
	}
	status, p := w.ask(t, "/v1/publish", strings.NewReader(`{"frame": {"channel": "a", "expectedSequence": "`+strings.Repeat("9", 100_000)+`"}}`))
	if status != http.StatusBadRequest || len(p.Message) > 1024 || strings.HasPrefix(p.Message, "{") {
		t.Errorf("a number of 100,000 digits: %d, %d bytes that begin with %.80q", status, len(p.Message), p.Message)
	}
}

// Symptom: the answer to JSON that is no request had a header Grpc-Status-Details-Bin, which
// said something else. Cause: the transcoder passes on what gRPC's answer has.
func TestJSONAnswersHaveNoHeadersOfGRPC(t *testing.T) {
	w := garbageWorld(t)
	answer, err := http.Post(w.url+"/v1/close", "application/json", strings.NewReader("{"))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	for name := range answer.Header {
		if strings.HasPrefix(name, "Grpc-") {
			t.Errorf("status %d has the header %s", answer.StatusCode, name)
		}
	}
}

// Symptom: what is too large was 413 with its reason, but when it came compressed 429 without
// one, as if it helped to try again. Both are told the same.
func TestTooLargeIsTheSameWhenItIsCompressed(t *testing.T) {
	w := garbageWorld(t)
	large := []byte(`{"channel": "` + strings.Repeat("x", int(w.handler.maxBodyBytes)) + `"}`)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = z.Write(large)
	_ = z.Close()
	for _, path := range []string{"/v1/close", fanfarev1.FanfareService_GetStream_FullMethodName} {
		code, text := w.post(t, path, "application/json", "", large)
		if code != http.StatusRequestEntityTooLarge || !strings.Contains(text, reasonField) || !strings.Contains(text, "nothing was sent") {
			t.Errorf("%s: %d, %s", path, code, text)
		}
		if same, again := w.post(t, path, "application/json", "gzip", packed.Bytes()); same != code || again != text {
			t.Errorf("%s, compressed: %d, %s", path, same, again)
		}
		if code, text := w.post(t, path, "application/json", "gzip", []byte(`{"channel": "not compressed"}`)); code != http.StatusBadRequest || !strings.Contains(text, "decompressed") {
			t.Errorf("%s, not compressed: %d, %s", path, code, text)
		}
	}
	message := append(binary.BigEndian.AppendUint32([]byte{compressed}, uint32(packed.Len())), packed.Bytes()...)
	if _, text := w.post(t, fanfarev1.FanfareService_GetStream_FullMethodName, "application/grpc-web+json", "gzip", message); !strings.Contains(strings.ToLower(text), "nothing") || strings.Contains(text, "esource") {
		t.Errorf("gRPC-Web, compressed: %q", text)
	}
	if !w.handler.requests.all.TryAcquire(maxRequestsBytes) {
		t.Error("what was held for requests was not given back")
	}
}
