package transcode

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fanfare-io/fanfare/backlog"
	fanfarev1 "github.com/fanfare-io/fanfare/gen/go/fanfare/v1"
)

// positionParameters are, by path, the names of what is a position among the parameters of
// a call that is reached by GET.
func positionParameters(described protoreflect.ServiceDescriptor) map[string][]string {
	position := (&fanfarev1.Position{}).ProtoReflect().Descriptor().FullName()
	names := map[string][]string{}
	for i := range described.Methods().Len() {
		method := described.Methods().Get(i)
		rule, _ := proto.GetExtension(method.Options(), annotations.E_Http).(*annotations.HttpRule)
		fields := method.Input().Fields()
		for j := range fields.Len() {
			if field := fields.Get(j); field.Message() != nil && field.Message().FullName() == position && rule.GetGet() != "" {
				names[rule.GetGet()] = append(names[rule.GetGet()], field.TextName())
			}
		}
	}
	return names
}

// readable reports whether the query of a request by GET can be read, and answers it if
// not. It has positions in their text form, EPOCH-SEQUENCE, be as the transcoder wants them:
// each number on its own.
//
// The transcoder would leave out what it cannot read, and take one of several values.
func (h *Handler) readable(w http.ResponseWriter, r *http.Request) bool {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		RefuseField(w, "", fmt.Sprintf("the query cannot be read: %.100s", err))
		return false
	}
	if field, message := repeated(query); field != "" {
		RefuseField(w, field, message)
		return false
	}
	for _, name := range h.positions[r.URL.Path] {
		epoch, sequence := name+".epoch", name+".sequence"
		text, whole := query[name]
		if query.Has(epoch) != query.Has(sequence) || whole && query.Has(epoch) {
			RefuseField(w, name, fmt.Sprintf("give either %s=EPOCH-SEQUENCE, or both %s and %s", name, epoch, sequence))
			return false
		}
		if !whole {
			continue
		}
		position, err := backlog.ParsePosition(text[0])
		if err != nil {
			RefuseField(w, name, fmt.Sprintf("%s: %s", name, err))
			return false
		}
		query.Del(name)
		query.Set(epoch, strconv.FormatUint(position.Epoch, 10))
		query.Set(sequence, strconv.FormatUint(position.Sequence, 10))
		r.URL.RawQuery = query.Encode()
	}
	return true
}

// repeated is a parameter that is given more than once, by one of its names or by both
// that it has in JSON.
func repeated(query url.Values) (field, message string) {
	given := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		key := strings.ToLower(strings.ReplaceAll(name, "_", ""))
		if given[key] += len(query[name]); given[key] > 1 {
			return name, fmt.Sprintf("%.100s is given %d times; give it once", name, given[key])
		}
	}
	return "", ""
}

// RefuseField answers with a Problem of a field that is outside its limit; empty: it cannot
// be said of which.
func RefuseField(w http.ResponseWriter, field, message string) {
	writeProblem(w, http.StatusBadRequest, Problem{
		Code: connect.CodeInvalidArgument.String(), Reason: reasonField, Field: field, Message: message,
	})
}
