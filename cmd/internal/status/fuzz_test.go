package status

import (
	"bytes"
	"encoding/json"
	"io"
	"testing"
)

// FuzzRequests: an arbitrary request asks for nothing but the status, or is an error.
func FuzzRequests(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"impair":"loss=1%"}`))
	f.Add([]byte(`{"fault":"reg_mr=ENOMEM"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		err := json.NewDecoder(bytes.NewReader(b)).Decode(&r)
		if execute(bytes.NewReader(b), nil, nil) == nil && (err != nil && err != io.EOF || r != Request{}) {
			t.Errorf("%q is accepted", b)
		}
	})
}
