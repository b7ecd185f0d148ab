// Package cli runs a command line: it parses the arguments, and turns errors into one line on stderr and an exit code.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
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
)

// Env is the environment of a command line.
type Env struct {
	Stdin          io.Reader // nil is an empty one
	Stdout, Stderr io.Writer
	// LAN is the switch that nodes with --link pipe are on; nil gives each a switch of its own.
	LAN *pipe.Switch
	// Counted makes each node count the packets on its link.
	Counted bool
	// Command is the file of the command softrnic, which nodes start a hub with; "" is the program that runs.
	Command string

	text *Checked // of Text
}

// Text is Stdout for what a command prints without a look at the error of each write: the first one is an error of the command.
func (e *Env) Text() io.Writer { return e.text }

// Checked remembers the first error of writing, and writes no more after it. It is for what is written by those who do not look at errors.
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

// Err is the first error.
func (c *Checked) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// OnPipe is the environment of nodes that are on a switch of their own. An mtu of 0 is the default.
func (e *Env) OnPipe(mtu int, opts ...pipe.Option) (*Env, error) {
	if mtu != 0 {
		opts = append(opts, pipe.MTU(mtu))
	}
	lan, err := pipe.New(opts...)
	if err != nil {
		return nil, err
	}
	return &Env{Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, LAN: lan, Counted: true, text: e.text}, nil
}

// nodeGroup is where --help lists the flags of node.Flags.
var nodeGroup = kong.Group{Key: "node", Title: "The node:"}

// Run carries out one command line and returns the exit code. grammar is a pointer to a struct whose fields are the commands,
// as kong has it; overview is what --help begins with.
func Run(ctx context.Context, args []string, e *Env, grammar any, overview string) int {
	e.text = NewChecked(e.Stdout)
	exited := false // kong has printed what was asked for: --help or --version
	parser := kong.Must(grammar,
		kong.Name("softrnic"),
		kong.Description(overview),
		kong.Vars{"version": Version()},
		kong.Writers(e.text, e.Stderr),
		kong.Exit(func(int) { exited = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, NoAppDescFormat: true, WrapUpperBound: 120}),
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

// badUsage makes an error of parsing a UsageError that names the --help to ask for, and lists the commands if one is unknown.
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

// mappers are how flags of these types are read.
var mappers = kong.OptionFunc(func(k *kong.Kong) error {
	return errors.Join(
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)).Apply(k),
		kong.NamedMapper("port", between(1, 1<<16-1, "")).Apply(k),
		kong.NamedMapper("window", between(128<<10, 16<<20, " bytes")).Apply(k),
		kong.NamedMapper("mtu", between(link.MinMTU, link.MaxSuperframe, " bytes: 1500 for a RoCE path MTU of 1024, 4200 for 4096")).Apply(k),
	)
})

// between maps a flag to a whole number from least to most. The error for any other value ends with remark.
func between(least, most int64, remark string) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		var s string
		if err := ctx.Scan.PopValueInto("number", &s); err != nil {
			return err
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%s: give %d to %d%s", s, least, most, remark)
		}
		target.Set(reflect.ValueOf(n).Convert(target.Type()))
		return nil
	}
}

// decodeDuration takes a time as Go writes it, or a number of seconds, as the -D of perftest does.
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
		return fmt.Errorf("%q is no time: give one such as 500ms, 5s or 2m; a bare number is of seconds", s)
	}
	target.SetInt(int64(d))
	return nil
}

// fail reports err, if there is one, on one line, and returns the exit code.
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
	return ExitFailed
}

// UsageError is an error in the command line itself.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// ExitStatus is an error of a command that has run another program, whose exit status becomes its own. Nothing is said.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

func Version() string {
	v := "(devel)"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v = info.Main.Version
	}
	return fmt.Sprintf("softrnic %s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
