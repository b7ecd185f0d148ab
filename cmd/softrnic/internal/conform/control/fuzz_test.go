package control_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
)

// FuzzReplies: a target answers hello, and a request, by arbitrary bytes. The tester gets a reply
// or an error.
func FuzzReplies(f *testing.F) {
	f.Add([]byte(`{"name":"softrnic0","addr":["10.0.0.1"]}` + "\n" + `{"completions":[{"wr_id":1}]}` + "\n"))
	f.Add([]byte(`{"error":"no"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		here, there := net.Pipe()
		go func() {
			go func() { _, _ = io.Copy(io.Discard, there) }()
			_, _ = there.Write(b)
			_ = there.Close()
		}()
		c, err := control.New(here, "secret", time.Minute)
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := c.Do(&control.Request{Op: control.Poll, QP: 1}); err == nil && c.Err() != nil {
			t.Errorf("an answer, and then %v", c.Err())
		}
	})
}
