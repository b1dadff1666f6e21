# Sourced with the file of a program, and with the arguments of its script: prints the HELP of that program and ends, if an
# argument asks for it, before anything is built.
for argument in "${@:2}"; do
    if [[ $argument == -h || $argument == --help ]]; then
        exec sed -n '/const HELP: &str = "\\$/,/^";$/{//!p;}' "$1"
    fi
done
