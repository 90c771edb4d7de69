package console

import (
	"net/http"
	"path"
	"strconv"
	"strings"
)

// contentTypeOf names the type of a file of dist. The machine's own table of types
// could have another opinion.
func contentTypeOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".txt":
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}

// acceptsGzip reads Accept-Encoding (RFC 9110, section 12.5.3).
func acceptsGzip(r *http.Request) bool {
	accepted := false
	for _, field := range r.Header.Values("Accept-Encoding") {
		for element := range strings.SplitSeq(field, ",") {
			coding, parameters, _ := strings.Cut(element, ";")
			switch strings.ToLower(strings.TrimSpace(coding)) {
			case "gzip":
				return weighsMoreThanNothing(parameters)
			case "*":
				accepted = weighsMoreThanNothing(parameters)
			}
		}
	}
	return accepted
}

func weighsMoreThanNothing(parameters string) bool {
	_, weight, ok := strings.Cut(strings.ToLower(parameters), "q=")
	if !ok {
		return true
	}
	q, err := strconv.ParseFloat(strings.TrimSpace(weight), 64)
	return err == nil && q > 0
}
