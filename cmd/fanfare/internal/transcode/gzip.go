package transcode

import (
	"compress/flate"
	"compress/gzip"
	"errors"
	"io"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
)

func newCompressor() connect.Compressor { return gzip.NewWriter(io.Discard) }

// newDecompressor makes what unpacks requests, up to a number of bytes: little packed
// makes a thousand times as much.
func newDecompressor(limit int64) func() connect.Decompressor {
	return func() connect.Decompressor { return &boundedGzip{limit: limit} }
}

type boundedGzip struct {
	gzip.Reader
	limit, left int64
}

// Reset implements connect.Decompressor.
func (b *boundedGzip) Reset(in io.Reader) error {
	b.left = b.limit
	return b.Reader.Reset(in)
}

// Read implements io.Reader.
func (b *boundedGzip) Read(p []byte) (int, error) {
	// One byte more tells whether there is one.
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left < 0 {
		return 0, connectError(withReason(codes.InvalidArgument, reasonField, sizeMessage(b.limit)))
	}
	return n, err
}

var errNotGzip = errors.New("the request is not compressed with gzip")

// gunzipped is the body of a request, decompressed as it is read, up to a number of bytes.
type gunzipped struct {
	io.ReadCloser
	limit  int64
	reader *boundedGzip
}

// Read implements io.Reader.
func (g *gunzipped) Read(p []byte) (int, error) {
	if g.reader == nil {
		g.reader = &boundedGzip{limit: g.limit}
		if err := g.reader.Reset(g.ReadCloser); err != nil {
			return 0, g.failed(err)
		}
	}
	n, err := g.reader.Read(p)
	switch {
	case g.reader.left < 0:
		return 0, &http.MaxBytesError{Limit: g.limit}
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	}
	return n, g.failed(err)
}

// failed tells what is no gzip from what did not come.
func (g *gunzipped) failed(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		// It says so of a request, too, that is all there and shorter than what is in it.
		if _, end := g.ReadCloser.Read(make([]byte, 1)); errors.Is(end, io.EOF) {
			return errNotGzip
		}
	}
	var corrupt flate.CorruptInputError
	if errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) || errors.As(err, &corrupt) {
		return errNotGzip
	}
	return err
}
