// Package query asks nodes for the status that package status publishes. It is apart, because a
// node does not ask others.
package query

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/softrnic/softrnic/cmd/internal/status"
)

// maxAnswer is the longest answer of a node, in bytes. It has room for 100,000 QPs.
const maxAnswer = 256 << 20

// Nodes returns the status of all nodes of this user, sorted by process ID. If pid is not 0, it
// returns the nodes of that process and of its descendants only. It removes sockets that killed
// processes have left.
func Nodes(ctx context.Context, pid int) ([]status.Node, error) {
	return Ask(ctx, pid, status.Request{})
}

// Ask is like Nodes, and each node executes r first. Node.Error says why one did not.
func Ask(ctx context.Context, pid int, r status.Request) ([]status.Node, error) {
	nodes, err := AskAll(ctx, pid, r)
	return slices.DeleteFunc(nodes, func(n status.Node) bool { return n.Hidden }), err
}

// All is like Nodes with a pid of 0, and includes hidden nodes.
func All(ctx context.Context) ([]status.Node, error) { return AskAll(ctx, 0, status.Request{}) }

// AskAll is like Ask, and includes hidden nodes.
func AskAll(ctx context.Context, pid int, r status.Request) ([]status.Node, error) {
	entries, err := os.ReadDir(status.Directory())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var nodes []status.Node
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), "-")
		if of, err := strconv.Atoi(name); pid != 0 && (err != nil || !descends(of, pid)) {
			continue
		}
		socket := filepath.Join(status.Directory(), e.Name())
		n, err := ask(ctx, socket, r)
		switch {
		case err == nil:
			nodes = append(nodes, n)
		case refused(err):
			// Its process has died, or is between bind and listen.
			if i, err := e.Info(); err == nil && time.Since(i.ModTime()) > time.Second {
				_ = os.Remove(socket)
			}
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
	}
	slices.SortStableFunc(nodes, func(a, b status.Node) int { return a.PID - b.PID })
	return nodes, nil
}

func ask(ctx context.Context, socket string, r status.Request) (n status.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, status.Timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return n, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return n, err
	}
	var answer json.RawMessage
	if err := json.NewDecoder(io.LimitReader(conn, maxAnswer)).Decode(&answer); err != nil {
		return n, err
	}
	return n, json.Unmarshal(plain(answer), &n)
}

// plain replaces control characters in the strings of a JSON value: other processes say what is
// shown on a terminal. A JSON value has backslashes in strings only.
func plain(value []byte) []byte {
	b := make([]byte, 0, len(value))
	for i := 0; i < len(value); {
		r, n := utf8.DecodeRune(value[i:])
		if r == '\\' { // as the value is valid, the rest of the escape follows
			switch n = 2; value[i+1] {
			case 'b', 'f', 'n', 'r', 't':
				r = 0
			case 'u':
				n = 6
				if code, err := strconv.ParseUint(string(value[i+2:i+6]), 16, 16); err == nil {
					r = rune(code)
				}
			}
		}
		if space := n == 1 && r < ' '; unicode.IsControl(r) && !space { // that is between the strings
			b = utf8.AppendRune(b, unicode.ReplacementChar)
		} else {
			b = append(b, value[i:i+n]...)
		}
		i += n
	}
	return b
}
