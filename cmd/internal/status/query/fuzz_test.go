package query

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/softrnic/softrnic/cmd/internal/status"
)

// FuzzAnswers: a process answers by arbitrary bytes. It is no node, or the one that it describes,
// without characters that control a terminal.
func FuzzAnswers(f *testing.F) {
	dir := f.TempDir()
	f.Add([]byte(`{"pid":1,"qps":[{"num":2}]}`))
	f.Add([]byte(`{"pid":"1"}`))
	f.Add([]byte("{\"pid\":\t7,\n\"link\":\"a\x7f\u009b\\\\u0041\"}"))
	f.Add([]byte(`{"pid":1,"link":"\u001b[2J\n","addrs":["\b"],"qps":[{"state":"\u009B","counters":{"\t":1}}],"error":"\r",` +
		`"impairment":{"spec":"\f"},"tunnel":{"peers":[{"name":"\u0007","endpoint":"[fe80::1%\u001b]:1"}]}}`))
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
			_ = json.NewDecoder(conn).Decode(new(status.Request))
			_, _ = conn.Write(b)
			_ = conn.Close()
		}()
		var want status.Node
		valid := json.NewDecoder(bytes.NewReader(b)).Decode(&want)
		n, err := ask(t.Context(), filepath.Join(dir, "node"), status.Request{})
		if err == nil && (valid != nil || n.PID != want.PID || len(n.QPs) != len(want.QPs)) {
			t.Errorf("%q is %+v", b, n)
		}
		if s := fmt.Sprintf("%+v %+v %+v", n, n.Impairment, n.Tunnel); strings.ContainsFunc(s, unicode.IsControl) {
			t.Errorf("%q is %q", b, s)
		}
	})
}
