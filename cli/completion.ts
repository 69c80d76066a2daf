/** Completion scripts, from the table of commands. */
import { COMMANDS } from './commands.ts';
import { UsageError } from './usage.ts';

const NAMES = [...COMMANDS.map(({ name }) => name), 'completion', 'help'];

export function completion(shell: string | undefined): string {
  switch (shell) {
    case 'bash':
      return `_kubectl_lathe() {
  local current="\${COMP_WORDS[COMP_CWORD]}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "${NAMES.join(' ')}" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$(kubectl get workspaces -o name 2>/dev/null | sed 's,.*/,,')" -- "$current") $(compgen -f -- "$current"))
  fi
}
complete -o nospace -F _kubectl_lathe kubectl-lathe
`;
    case 'zsh':
      return `#compdef kubectl-lathe
_kubectl_lathe() {
  if (( CURRENT == 2 )); then
    local -a commands=(${COMMANDS.map(({ name, summary }) => `'${name}:${summary.replaceAll("'", '')}'`).join(' ')} 'completion:Completion for a shell' 'help:What a command takes')
    _describe command commands
  else
    compadd -S ':' -- \${(f)"$(kubectl get workspaces -o name 2>/dev/null | sed 's,.*/,,')"}
    _files
  fi
}
compdef _kubectl_lathe kubectl-lathe
`;
    case 'fish':
      return `${[
        ...COMMANDS.map(
          ({ name, summary }) =>
            `complete -c kubectl-lathe -n __fish_use_subcommand -a ${name} -d '${summary.replaceAll("'", '')}'`,
        ),
        `complete -c kubectl-lathe -n 'not __fish_use_subcommand' -a "(kubectl get workspaces -o name 2>/dev/null | string replace -r '.*/' '')"`,
      ].join('\n')}\n`;
    default:
      throw new UsageError('completion is for bash, zsh or fish');
  }
}
