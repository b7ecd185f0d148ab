package tests

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// machineTime are the packages and files with the machine's time, timers and random numbers, with
// the reason. All else below the layers has those of its link or stack: see link/clock and
// verbs.Clock.
var machineTime = map[string]string{
	"link/clock":                    "it is the machine's clock",
	"link/fabric":                   "it is the clock of a simulation",
	"link/idle":                     "it measures how long a processor spins",
	"link/internal/station":         "it draws MAC addresses of the machine",
	"link/internal/vnet":            "its file descriptors are the kernel's",
	"link/linktest":                 "it waits for any link",
	"link/ring":                     "its memory is shared with other processes",
	"link/shm":                      "its memory is shared with other processes",
	"link/stream":                   "its sockets are the machine's",
	"link/userdir":                  "its sockets are the machine's",
	"link/wireguard":                "its sockets are the machine's",
	"stack/hub":                     "its sockets and processes are the machine's",
	"stack/internal/rxsocket":       "its sockets are the machine's",
	"stack/kernel":                  "its sockets are the machine's",
	"rdmatransport/classify":        "it is a part of a hub",
	"verbs/clock.go":                "it is the machine's clock",
	"verbs/ulp/nvme/auth":           "its random numbers are secrets",
	"verbs/ulp/nvme/host/config.go": "it draws the name of a host that has none",
}

// ownTime are the functions that a clock has too.
var ownTime = map[string][]string{
	"time":    {"Now", "Since", "Until", "AfterFunc", "NewTimer", "NewTicker", "After", "Tick", "Sleep"},
	"context": {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause"},
}

// TestClock: time, timers and random numbers of all layers come from the clock of a link or stack.
func TestClock(t *testing.T) {
	used := map[string]bool{}
	for _, top := range []string{"link", "stack", "rdmatransport", "verbs"} {
		err := filepath.WalkDir("../"+top, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			name = strings.TrimPrefix(filepath.ToSlash(name), "../")
			for at, what := range machineTimes(file) {
				if _, ok := machineTime[name]; ok {
					used[name] = true
				} else if _, ok := machineTime[path.Dir(name)]; ok {
					used[path.Dir(name)] = true
				} else {
					t.Errorf("%s: %s: use the clock of the link, stack or device", fset.Position(at), what)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range machineTime {
		if !used[name] {
			t.Errorf("%s does not use the machine's time: remove it from machineTime", name)
		}
	}
}

// machineTimes returns the uses of the machine's time and random numbers in a file.
func machineTimes(file *ast.File) map[token.Pos]string {
	names, found := map[string]string{}, map[token.Pos]string{} // imports by their names in the file
	for _, i := range file.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		name := path.Base(strings.TrimSuffix(p, "/v2"))
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = p
	}
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := s.X.(*ast.Ident)
		if !ok {
			return true
		}
		switch p := names[x.Name]; p {
		case "time", "context":
			if slices.Contains(ownTime[p], s.Sel.Name) {
				found[s.Pos()] = p + "." + s.Sel.Name
			}
		case "math/rand", "math/rand/v2": // a generator with a seed, and types, are allowed
			if !slices.Contains([]string{"New", "NewPCG", "NewSource", "Rand", "Source"}, s.Sel.Name) {
				found[s.Pos()] = p + "." + s.Sel.Name
			}
		case "crypto/rand":
			found[s.Pos()] = p + "." + s.Sel.Name
		}
		return true
	})
	return found
}
