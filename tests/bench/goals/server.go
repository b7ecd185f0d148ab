//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// withServer starts a server of softrnic in a namespace on a side's processor. It calls f when the
// first line on stderr contains ready, and stops the server when f has returned.
func (l *lab) withServer(ctx context.Context, in netns.NsHandle, on side, ready string, f func() error, args ...string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*programTimeout)
	defer cancel()
	says, stderr, err := os.Pipe()
	if err != nil {
		return err
	}
	defer says.Close()
	cmd, err := l.start(ctx, in, on, io.Discard, stderr, l.softrnic, args...)
	_ = stderr.Close()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(says)
	up := lines.Scan() && strings.Contains(lines.Text(), ready)
	var more bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&more, says)
	}()
	if up {
		err = f()
	}
	_ = cmd.Process.Signal(unix.SIGTERM)
	ended := cmd.Wait()
	<-read
	if !up || err == nil && ended != nil {
		return fmt.Errorf("%s: %v: %s %s", strings.Join(cmd.Args, " "), ended, lines.Text(), bytes.TrimSpace(more.Bytes()))
	}
	return err
}
