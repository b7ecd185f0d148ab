package status

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"testing"
)

// FuzzAnswers: a process answers by arbitrary bytes. It is no node, or the one that it describes.
func FuzzAnswers(f *testing.F) {
	dir := f.TempDir()
	f.Add([]byte(`{"pid":1,"qps":[{"num":2}]}`))
	f.Add([]byte(`{"pid":"1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := net.Listen("unix", filepath.Join(dir, "node"))
		if err != nil {
			t.Skip("there are no unix sockets: ", err)
		}
		defer l.Close()
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(b)
			_ = conn.Close()
		}()
		if _, err := ask(t.Context(), filepath.Join(dir, "node"), Request{}); err == nil && len(b) == 0 {
			t.Error("a node that says nothing")
		}
	})
}

// FuzzRequests: an arbitrary request asks for nothing but the status, or is an error.
func FuzzRequests(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"impair":"loss=1%"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		err := json.NewDecoder(bytes.NewReader(b)).Decode(&r)
		if execute(bytes.NewReader(b), nil) == nil && (err != nil && err != io.EOF || r.Impair != nil) {
			t.Errorf("%q is accepted", b)
		}
	})
}
