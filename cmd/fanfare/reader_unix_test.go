//go:build unix

package main

import (
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// outputs are the kinds of output whose reader may leave.
var outputs = map[string]func(t *testing.T) (reader, writer *os.File){
	"pipe": func(t *testing.T) (reader, writer *os.File) {
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		return reader, writer
	},
	"socket": func(t *testing.T) (reader, writer *os.File) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fds[0]), "reader"), os.NewFile(uintptr(fds[1]), "writer")
	},
}

// fanfare subscribe … | head -1 never ended on an idle stream: only a write
// tells that nobody reads any more, and there was nothing to write.
func TestSubscribeWithoutAReader(t *testing.T) {
	s := startEmbedded(t)
	mustRun(t, "x", "publish", "c", "s", "--server", s.address)
	for name, output := range outputs {
		t.Run(name, func(t *testing.T) {
			reader, writer := output(t)
			defer writer.Close()
			stderr := newTranscript()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ended := make(chan int, 1)
			go func() {
				ended <- run(ctx, []string{"subscribe", "c", "s", "--server", s.address}, nil, nil, writer, stderr)
			}()
			stderr.await(t, "caught up")
			line := make([]byte, 2)
			if _, err := reader.Read(line); err != nil || string(line) != "x\n" {
				t.Errorf("read %q, %v", line, err)
			}
			select {
			case code := <-ended:
				t.Fatalf("ended with %d while there was a reader", code)
			default:
			}
			reader.Close()
			if code := <-ended; code != exitOK || ctx.Err() != nil {
				t.Errorf("exit code %d, %v", code, ctx.Err())
			}
		})
	}
}

// A signal ends the watching as well.
func TestSubscribeInterruptedWithAReader(t *testing.T) {
	s := startEmbedded(t)
	reader, writer := outputs["pipe"](t)
	defer reader.Close()
	defer writer.Close()
	stderr := newTranscript()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"subscribe", "c", "s", "--server", s.address}, nil, nil, writer, stderr)
	}()
	stderr.await(t, "caught up")
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestWatchReaderOfWhatIsNoPipe(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/output")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	watchReader(file, func() { t.Error("a file has no reader that leaves") })()
}
