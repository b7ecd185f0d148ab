// Package cli runs a command line. It parses the arguments, and reports an error as one line on
// stderr and an exit code.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
)

// Exit codes.
const (
	ExitOK = iota
	ExitFailed
	ExitUsage
	// ExitIncomplete is the code of a check that found nothing wrong, and could not check everything.
	ExitIncomplete
)

// Env is the environment of a command line.
type Env struct {
	Stdin          io.Reader // nil: empty
	Stdout, Stderr io.Writer
	// LAN is the switch of nodes with --link pipe. If it is nil, each node has its own switch.
	LAN *pipe.Switch
	// Counted makes each node count the packets on its link.
	Counted bool
	// Command is the file of the command softrnic, with which nodes start a hub. "" is the running
	// program.
	Command string

	text *Checked // returned by Text
}

// Text returns a writer to Stdout that defers errors. A command need not check each write: the
// first error becomes the command's error.
func (e *Env) Text() io.Writer { return e.text }

// WriteJSON writes v to Stdout as indented JSON.
func (e *Env) WriteJSON(v any) error {
	enc := json.NewEncoder(e.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Checked is a writer that keeps the first error and writes nothing after it. Its callers need not
// check the error of each write.
type Checked struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewChecked returns a Checked that writes to w.
func NewChecked(w io.Writer) *Checked { return &Checked{w: w} }

// Write implements io.Writer.
func (c *Checked) Write(b []byte) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		n, c.err = c.w.Write(b)
	}
	return n, c.err
}

// Err returns the first error.
func (c *Checked) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// OnPipe returns an environment whose nodes are on a new switch.
func (e *Env) OnPipe(cfg *pipe.Config) (*Env, error) {
	lan, err := pipe.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Env{Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, LAN: lan, Counted: true, text: e.text}, nil
}

// nodeGroup is the group of --help with the flags of node.Flags.
var nodeGroup = kong.Group{Key: "node", Title: "The node:"}

// Run runs one command line and returns the exit code. grammar is a pointer to a struct of kong's
// whose fields are the commands. overview is the first text of --help.
func Run(ctx context.Context, args []string, e *Env, grammar any, overview string) int {
	e.text = NewChecked(e.Stdout)
	exited := false // kong has handled --help or --version
	parser := kong.Must(grammar,
		kong.Name("softrnic"),
		kong.Description(overview),
		kong.Vars{"version": Version()},
		kong.Writers(e.text, e.Stderr),
		kong.Exit(func(int) { exited = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, NoAppDescFormat: true, WrapUpperBound: 120}),
		kong.ValueFormatter(withVariable),
		kong.ExplicitGroups([]kong.Group{nodeGroup}),
		mappers,
		kong.Bind(e),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if len(args) == 0 {
		args = []string{"--help"}
	}
	cmd, err := parser.Parse(args)
	switch {
	case e.text.Err() != nil:
		return e.fail(e.text.Err())
	case exited:
		return ExitOK
	case err != nil:
		return e.fail(badUsage(err))
	}
	if err = cmd.Run(); err == nil {
		err = e.text.Err()
	} else if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = errors.New("interrupted")
	}
	return e.fail(err)
}

// badUsage converts a parse error to a UsageError that names the command's --help. If a command is
// unknown, it lists the commands.
func badUsage(err error) error {
	failed := (*kong.ParseError)(nil)
	if !errors.As(err, &failed) {
		return UsageError{err}
	}
	node := failed.Context.Selected()
	if node == nil {
		node = failed.Context.Model.Node
	}
	var commands []string
	for _, child := range node.Children {
		commands = append(commands, child.Name)
	}
	if unknown := "unexpected argument"; strings.HasPrefix(err.Error(), unknown) && len(commands) > 0 {
		what, _, _ := strings.Cut(err.Error(), ", did you mean")
		err = fmt.Errorf("%s: the commands are %s", what, strings.Join(commands, ", "))
	}
	return UsageError{fmt.Errorf("%w (%s --help explains)", err, node.FullPath())}
}

// withVariable returns the help of a flag with the environment variable of its tag var, as kong
// does for its own tag env. Kong would read that, also for the other commands.
func withVariable(v *kong.Value) string {
	help := kong.DefaultHelpValueFormatter(v)
	if name := v.Tag.Get("var"); name != "" {
		help = strings.TrimSuffix(help, ".") + " ($" + name + ")."
	}
	return help
}

// mappers parse flags of these types.
var mappers = kong.OptionFunc(func(k *kong.Kong) error {
	return errors.Join(
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)).Apply(k),
		kong.NamedMapper("port", between(1, 1<<16-1, "")).Apply(k),
		kong.NamedMapper("window", kong.MapperFunc(decodeWindow)).Apply(k),
		kong.NamedMapper("mtu",
			between(link.MinMTU, link.MaxSuperframe, " bytes: 1500 for a RoCE path MTU of 1024, 4200 for 4096")).Apply(k),
	)
})

// between parses a flag as an integer from least to most. The error for any other value ends with
// remark.
func between(least, most int64, remark string) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		var s string
		if err := ctx.Scan.PopValueInto("number", &s); err != nil {
			return err
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%s: must be %d to %d%s", s, least, most, remark)
		}
		target.Set(reflect.ValueOf(n).Convert(target.Type()))
		return nil
	}
}

// decodeWindow parses a RoCE window: a power of two.
func decodeWindow(ctx *kong.DecodeContext, target reflect.Value) error {
	err := between(128<<10, 16<<20, " bytes, a power of two")(ctx, target)
	if n := target.Int(); err == nil && n&(n-1) != 0 {
		err = fmt.Errorf("%d: must be a power of two, such as %d", n, 1<<bits.Len64(uint64(n)))
	}
	return err
}

// decodeDuration parses a duration in Go's syntax, or a number of seconds as in perftest's -D.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("time", &s); err != nil {
		return err
	}
	d, err := time.ParseDuration(s)
	if seconds, plain := strconv.ParseFloat(s, 64); plain == nil {
		d, err = time.ParseDuration(strconv.FormatFloat(seconds, 'f', -1, 64) + "s")
	}
	if err != nil {
		return fmt.Errorf("%q is not a duration: must be like 500ms, 5s or 2m; a number without a unit is in seconds", s)
	}
	target.SetInt(int64(d))
	return nil
}

// fail reports err on one line, unless it is nil, and returns the exit code.
func (e *Env) fail(err error) int {
	if err == nil {
		return ExitOK
	}
	if status := ExitStatus(0); errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(e.Stderr, "softrnic: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
	if errors.As(err, new(UsageError)) {
		return ExitUsage
	}
	if errors.As(err, new(IncompleteError)) {
		return ExitIncomplete
	}
	return ExitFailed
}

// UsageError is an error in the command line.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// ExitStatus is the error of a command that returns the exit status of another program. It is not
// reported on stderr.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// IncompleteError says what a check could not check, if it found nothing wrong.
type IncompleteError struct{ Err error }

func (e IncompleteError) Error() string { return e.Err.Error() }

func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

func Version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("softrnic %s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
