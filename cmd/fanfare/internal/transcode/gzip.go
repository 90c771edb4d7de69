package transcode

import (
	"compress/gzip"
	"fmt"
	"io"

	"connectrpc.com/connect"
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
		return 0, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the request is larger than %d bytes when it is decompressed", b.limit))
	}
	return n, err
}
