package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	lua "github.com/yuin/gopher-lua"
)

// Argo CD's own limit for a script.
const scriptTime = time.Second

// runLua reads a JSON list of objects and writes what the health script named by the only argument says of each, in an
// interpreter with the libraries that Argo CD opens by default: package, base and table; no string, no math.
func runLua(arguments []string, in io.Reader, out io.Writer) error {
	if len(arguments) != 1 {
		return fmt.Errorf("usage: tools lua SCRIPT < OBJECTS")
	}
	script, err := os.ReadFile(arguments[0])
	if err != nil {
		return err
	}
	var objects []map[string]any
	if err := json.NewDecoder(in).Decode(&objects); err != nil {
		return err
	}
	verdicts := make([]verdict, 0, len(objects))
	for _, object := range objects {
		one, err := judgeLua(string(script), object)
		if err != nil {
			return err
		}
		verdicts = append(verdicts, one)
	}
	return json.NewEncoder(out).Encode(verdicts)
}

func judgeLua(script string, object map[string]any) (verdict, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range []struct {
		name string
		open lua.LGFunction
	}{{lua.LoadLibName, lua.OpenPackage}, {lua.BaseLibName, lua.OpenBase}, {lua.TabLibName, lua.OpenTable}} {
		state.Push(state.NewFunction(library.open))
		state.Push(lua.LString(library.name))
		state.Call(1, 0)
	}
	limit, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	state.SetContext(limit)
	state.SetGlobal("obj", luaValue(state, object))
	if err := state.DoString(script); err != nil {
		return verdict{}, err
	}
	answer, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return verdict{}, fmt.Errorf("the script must return a table")
	}
	return verdict{lua.LVAsString(answer.RawGetString("status")), lua.LVAsString(answer.RawGetString("message"))}, nil
}

func luaValue(state *lua.LState, value any) lua.LValue {
	switch typed := value.(type) {
	case bool:
		return lua.LBool(typed)
	case float64:
		return lua.LNumber(typed)
	case string:
		return lua.LString(typed)
	case []any:
		table := state.NewTable()
		for _, item := range typed {
			table.Append(luaValue(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, item := range typed {
			table.RawSetString(key, luaValue(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}
